"""Acceptance and time of drafts on a part of a prompt: ``python research/analysis/long/selections.py FILE --out OUT``.

FILE is of the prompt set `long` (`long_prompts.py`). Every prompt is read once; then each way of decoding continues
it, in turn, on the same keys and values. A line of JSON for each way of each prompt is added to `--out`; `--table`
makes tables of such files. Times are the process's own on one thread, so other programs' shares do not count, but the
memory that they use at the same time slows this one down, too.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import specframe
from specframe.decoding.pipeline import Pipeline
from specframe.kernel.types import Committed, Context, KnownPrefix, Prompts
from specframe.sampling.greedy import follow_argmax
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom

ROOM = 300
"""Positions after a prompt: new tokens, and the nodes of a draft."""
LEAST = 24
"""Tokens of an answer at least; prompts with shorter ones are left out."""
GRAM = 8
"""Tokens of an n-gram whose repetition is counted."""
SELECTIONS: dict[str, Any] = {
    "window": lambda budget: {"sinks": 4, "recent": budget - 4},
    "snapkv": lambda budget: {"budget": budget},
    "chunks": lambda budget: {"budget": budget, "every": 16},
    "verified": lambda budget: {"budget": budget},
    "speckv": lambda budget: {"budget": budget, "lookahead": 32},
}
"""The options of each KV selection for a budget."""
BUDGETS = (128, 256, 512, 1024)
FASTDRAFT = {"use": "model", "weights": "zoo://smollm2-135m-fastdraft", "quantize": "int8"}


def own(kv_selection: str, budget: int, **options: Any) -> dict[str, Any]:
    """A chain that the target, or a quantized copy of its layers, drafts on a KV selection."""
    return {
        "drafter": {
            "use": "self",
            "kv_selection": {"use": kv_selection, **SELECTIONS[kv_selection](budget)},
            **options,
        },
        "tree": {"use": "chain", "depth": 4},
    }


def triforce(draft: dict[str, Any], budget: int = 512) -> dict[str, Any]:
    """A cascade whose review sees chunks."""
    review = {"use": "self", "kv_selection": {"use": "chunks", **SELECTIONS["chunks"](budget)}}
    return {"drafter": {"use": "cascade", "tokens": 6, "ask": 2, "draft": draft, "review": review}}


WINDOWED = {**FASTDRAFT, "kv_selection": {"use": "window", "recent": 240}}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"drafter": "none"},
    **{f"{kv_selection} {budget}": own(kv_selection, budget) for kv_selection in SELECTIONS for budget in BUDGETS},
    **{f"{kv_selection} 512, 4 bits": own(kv_selection, 512, quantize="int4") for kv_selection in SELECTIONS},
    "triforce, model": triforce(WINDOWED),
    "triforce, suffix": triforce({"use": "suffix"}),
}
"""Ways that are measured, by name."""
GROUPS = {
    "acceptance": [name for name in WAYS if name.split()[-1].isdigit()],
    "time": ["plain", *[f"{kv_selection} 512" for kv_selection in SELECTIONS], "triforce, model", "triforce, suffix"],
}


@dataclass(frozen=True)
class Begun:
    """A session of one row that has read its prompt, before the first draft."""

    pipeline: Pipeline
    committed: Committed
    queries: Tensor
    tokens: int
    seconds: float

    def rewind(self) -> None:
        """Forgets everything but the prompt."""
        rows = self.pipeline.parts.target.memory()  # type: ignore[attr-defined]
        rows.rewind(self.committed.count, [self.tokens])
        rows.show(self.queries)


def begin(pipeline: Pipeline, tokens: Sequence[int], kept: Path | None) -> Begun:
    """Reads a prompt, or takes what was kept of an earlier reading."""
    target: Any = pipeline.parts.target
    count = len(tokens)
    target.open(1, count + ROOM)
    prompts = Prompts(torch.tensor([[*tokens]]), torch.tensor([count]))
    known = torch.load(kept) if kept is not None and kept.exists() else None
    if known is not None:
        prefix = KnownPrefix(tuple(tokens[:-1]), known["memory"], {})
        prompts = Prompts(prompts.tokens, prompts.count, prefixes=(prefix,))
        for layer in range(known["queries"].shape[0]):
            prefix.features[f"query.{layer}"] = torch.zeros(1, count - 1, known["queries"].shape[-1])  # type: ignore[index]
    start = time.process_time()
    tree, scores = target.admit(prompts)
    committed = target.commit(tree, follow_argmax(tree, scores.logits.argmax(-1)))
    seconds = time.process_time() - start
    rows = target.memory()
    queries = rows._queries if known is None else known["queries"]
    if known is None and kept is not None:
        whole = kept.with_suffix(f".{os.getpid()}")
        torch.save({"memory": rows.memory.every[:, 0, :, : count - 1].clone(), "queries": queries}, whole)
        whole.rename(kept)
    return Begun(pipeline, committed, queries, count, seconds if known is None else 0.0)


def decode(begun: Begun, way: Pipeline, most: int) -> dict[str, Any]:
    """Continues a prompt greedily by one way; returns what was counted and timed."""
    parts, target = way.parts, begun.pipeline.parts.target
    begun.rewind()
    drafter, root = parts.drafter, begun.committed.root
    drafter.open(1, begun.tokens + ROOM)
    context = Context(Sampling(temperature=0.0), SeededRandom(0, 1).draft)
    start = time.process_time()
    drafter.commit(begun.committed)
    drafter.propose(root, parts.tree, context)  # a drafter with a cache of its own reads the prompt here
    first = time.process_time() - start
    text, reached, drafted, cycles = [int(root)], Counter[int](), Counter[int](), 0
    start = time.process_time()
    while len(text) < most and text[-1] not in target.ends:
        draft = drafter.propose(root, parts.tree, context)
        scores = target.score(draft)
        verdict = follow_argmax(draft, scores.logits.argmax(-1))
        committed = target.commit(draft, verdict)
        drafter.commit(committed)
        root, cycles = committed.root, cycles + 1
        length = int(verdict.length[0])
        reached.update(range(1, length + 1))
        drafted.update(range(1, min(draft.levels, length + 1) + 1))
        for token in committed.tokens[0, : int(committed.count[0])].tolist():
            text.append(token)
            if token in target.ends:
                break
    seconds = time.process_time() - start
    return {
        "seconds": round(seconds, 4),
        "first": round(first, 4),
        "tokens": len(text) - 1,
        "cycles": cycles,
        "accepted": [reached[level] for level in sorted(drafted)],
        "reached": [drafted[level] for level in sorted(drafted)],
        "repeated": round(repeated(text), 3),
        "text": text[:most],
    }


def repeated(tokens: Sequence[int]) -> float:
    """The share of n-grams that stood in the text before."""
    grams = [tuple(tokens[place : place + GRAM]) for place in range(len(tokens) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def compose(target: Any, way: dict[str, Any]) -> Pipeline:
    """A way of decoding with a target, by the rule `match`, of a user's turn in a chat."""
    return specframe.compose(target=target, verifier={"use": "match"}, run={"chat": True}, **way)


def measure(path: Path, options: argparse.Namespace) -> None:
    """Measures the ways on a file's prompts."""
    torch.set_num_threads(1)
    few = {"quantize": "int4"} if options.dtype == "int4" else {"dtype": "bfloat16", "native": True}
    plain = compose({"use": "hf", "model": "zoo://smollm2-135m", **few}, {"drafter": "none"})
    target: Any = plain.parts.target
    names = [name for part in options.ways for name in GROUPS.get(part, [part])]
    names = [name for name in WAYS if name in names]
    ways = {name: compose(target, WAYS[name]) for name in names}
    target._taps.request_queries()
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for task in options.tasks:
        found = 0
        for place, record in enumerate(one for one in records if one["task"] == task):
            kept = options.keep and options.keep / f"{path.stem}-{options.dtype}-{task}-{place}.pt"
            with torch.inference_mode():
                begun = begin(plain, plain.encode(record["prompt"]), kept)
                if decode(begun, plain, LEAST)["tokens"] + 1 < LEAST:
                    print(task, place, "ends at once", flush=True)
                    continue
                continue_by(begun, ways, record, path.stem, options)
            found += 1
            if found == options.number:
                break


def continue_by(
    begun: Begun, ways: dict[str, Pipeline], record: dict[str, Any], name_of_set: str, options: argparse.Namespace
) -> None:
    """Continues a prompt by each way in turn, there and back, and writes what was found."""
    for number in range(options.repeats):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            found = decode(begun, ways[name], options.tokens)
            line = {
                "file": name_of_set, "dtype": options.dtype, "task": record["task"], "source": record["source"],
                "prompt": begun.tokens, "reading": begun.seconds, "way": name, "load": os.getloadavg()[0], **found,
            }  # fmt: skip
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(record["task"], begun.tokens, name, f"tau {found['tokens'] / max(1, found['cycles']):.2f}",
                  f"{1e3 * found['seconds'] / max(1, found['tokens']):.1f} ms", flush=True)  # fmt: skip


def tables(files: Sequence[Path]) -> str:
    """Two tables of result files in Markdown: acceptance by budget, and times against plain decoding.

    A prompt's time is the shortest of its repeats, since other programs only make it longer.
    """
    records = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return f"{acceptance_table(records)}\n\n{time_table(records)}"


def acceptance_table(records: Sequence[dict[str, Any]]) -> str:
    """The share of drafted tokens that was accepted, those after a refused one left out, by selection and budget."""
    lines = [
        "| task, tokens | KV selection | " + " | ".join(map(str, BUDGETS)) + " |",
        "|---|---|" + "---|" * len(BUDGETS),
    ]
    for file, task in sorted({(one["file"], one["task"]) for one in records}):
        for kv_selection in SELECTIONS:
            cells = []
            for budget in BUDGETS:
                rows = [one for one in records if (one["file"], one["task"], one["way"], one["dtype"])
                        == (file, task, f"{kv_selection} {budget}", "bf16")]  # fmt: skip
                reached = sum(sum(one["reached"]) for one in rows)
                cells.append(f"{sum(sum(one['accepted']) for one in rows) / reached:.2f}" if reached else "")
            if any(cells):
                lines.append(f"| {task}, {file.partition('-')[2]} | `{kv_selection}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def time_table(records: Sequence[dict[str, Any]]) -> str:
    """Milliseconds a token and the gain over plain decoding of the same prompt: medians over prompts, and ranges."""
    lines = ["| target | tokens | way | prompts | tau | ms a token | times plain |", "|---|---|---|---|---|---|---|"]
    best: dict[tuple[str, ...], float] = {}
    for one in records:
        key = one["dtype"], one["file"], one["way"], one["task"], one["source"]
        best[key] = min(best.get(key, float("inf")), 1e3 * one["seconds"] / one["tokens"])
    for dtype, file in sorted({key[:2] for key in best}, key=lambda key: (key[0], int(key[1].partition("-")[2]))):
        for way in WAYS:
            times = {key[3:]: ms for key, ms in best.items() if key[:3] == (dtype, file, way)}
            gains = [best[dtype, file, "plain", *prompt] / ms for prompt, ms in times.items()]
            rows = [one for one in records if (one["dtype"], one["file"], one["way"]) == (dtype, file, way)]
            if rows:
                tau = sum(one["tokens"] for one in rows) / sum(one["cycles"] for one in rows)
                lines.append(
                    f"| {dtype} | {file.partition('-')[2]} | {way} | {len(times)} | {tau:.2f} | "
                    f"{median(times.values()):.1f} | {median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f}) |"
                )
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="+", help="a file of the prompt set `long`; with --table, of results")
    parser.add_argument("--table", action="store_true", help="print tables of results")
    parser.add_argument("--ways", nargs="+", default=["time"], help="names, or the groups `acceptance` and `time`")
    parser.add_argument("--tasks", nargs="+", default=["summary", "passages", "code"])
    parser.add_argument("--dtype", choices=["bf16", "int4"], default="bf16")
    parser.add_argument("--number", type=int, default=3, help="prompts of each task")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for what was read of prompts, of some 350 MB each")
    parser.add_argument("--out", type=Path, help="where results are added")
    options = parser.parse_args()
    if options.table:
        print(tables(options.file))
        return
    if options.out is None:
        parser.error("give --out, a file for results")
    for file in options.file:
        measure(file, options)


if __name__ == "__main__":
    main()
