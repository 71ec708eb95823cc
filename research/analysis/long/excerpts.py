"""Tau of drafts from an excerpt, a window, chunks: ``python research/analysis/long/excerpts.py QUESTIONS``.

QUESTIONS is Spec-Bench's question.jsonl: each question that has a passage is put after some twenty other passages. The
other prompts are modules of Python's standard library, with a request to rewrite a part. Nothing is timed: tau does not
depend on the machine's load.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from transformers import AutoTokenizer

import specframe
from specframe.inspect.forecast import measure_tau

BUDGET, LONGEST, OTHERS = 1024, 7300, 20
MODULES = ("textwrap", "heapq", "bisect", "shlex", "string", "fractions", "dataclasses", "queue")
DRAFTERS: dict[str, dict[str, Any]] = {
    "excerpt": {
        "use": "excerpt",
        "tokens": BUDGET,
        "drafter": {"use": "model", "model": "zoo://smollm2-135m", "quantize": "int4"},
    },
    "excerpt by attention": {
        "use": "excerpt",
        "tokens": BUDGET,
        "select": {"use": "specpc"},
        "drafter": {"use": "model", "model": "zoo://smollm2-135m", "quantize": "int4"},
    },
    "excerpt by FastDraft's attention": {
        "use": "excerpt",
        "tokens": BUDGET,
        "select": {"use": "specpc", "drafter": {"use": "model", "weights": "zoo://fastdraft"}},
        "drafter": {"use": "model", "model": "zoo://smollm2-135m", "quantize": "int4"},
    },
    "window": {"use": "self", "kv_selection": {"use": "window", "sinks": 4, "recent": BUDGET - 4}},
    "chunks": {"use": "self", "kv_selection": {"use": "chunks", "budget": BUDGET, "every": 16}},
}


def questions(file: Path, tokenizer: Any, count: int) -> Iterator[str]:
    """Yields questions after their passage, which stands at a random place among others."""
    records = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    texts = [record["turns"][0].rpartition("\n") for record in records if record["category"] == "rag"]
    dice = Random(0)
    for own in dice.sample(range(len(texts)), 8)[:count]:
        others = dice.sample([other for other in range(len(texts)) if other != own], OTHERS)
        passages, total = [texts[own][0]], len(tokenizer(texts[own][0])["input_ids"])
        for other in others:
            total += len(tokenizer(texts[other][0])["input_ids"])
            if total > LONGEST:
                break
            passages.append(texts[other][0])
        dice.shuffle(passages)
        yield "\n\n".join([*passages, texts[own][2]])


def modules(tokenizer: Any, count: int) -> Iterator[str]:
    """Yields modules, each with a request to rewrite its middle function or class."""
    for name in MODULES[:count]:
        source = inspect.getsource(importlib.import_module(name))
        text = tokenizer.decode(tokenizer(source)["input_ids"][:LONGEST])
        parts = [line for line in text.splitlines() if line.lstrip().startswith(("class ", "def "))]
        yield f"{text}\n\nRewrite `{parts[len(parts) // 2].split('(')[0]}` of this module with type hints."


def main() -> None:
    """Prints tau and the number of cycles of each drafter on each kind of prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--count", type=int, default=4, help="prompts of each kind (default: %(default)s)")
    asked = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(specframe.model_folder("smollm2-135m"))
    kinds = {
        "questions": list(questions(asked.questions, tokenizer, asked.count)),
        "code": list(modules(tokenizer, asked.count)),
    }
    for name, drafter in DRAFTERS.items():
        pipeline = specframe.compose(
            target={"use": "hf", "model": "zoo://smollm2-135m", "dtype": "bfloat16", "native": True},
            drafter=drafter,
            tree={"use": "chain", "depth": 4},
            verifier={"use": "match"},
            sampling={"temperature": 0.0, "max_new_tokens": 48},
        )
        for kind, prompts in kinds.items():
            found = measure_tau(pipeline, prompts)
            print(f"{name}, {kind}: tau {found.tau:.2f} in {int(found.cycles.sum())} cycles", flush=True)


if __name__ == "__main__":
    main()
