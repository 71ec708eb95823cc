"""Measure a model on held-out documents and let it speak: ``python samples.py --splits DIR --model FOLDER
--out STEM``.

Writes ``STEM.json`` and ``STEM.md``: nats a token and bits a byte for each kind, and greedy continuations of
held-out prompts.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from documents import KINDS
from packing import read, render
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

SPECIAL_IDS = 6


@torch.inference_mode()
def measure(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, records: list[dict[str, Any]], longest: int
) -> dict[str, float]:
    """Return nats a token and bits a byte over the openings of ``records``, a document at a time."""
    nats, tokens, size = 0.0, 0, 0
    for record in records:
        ids = tokenizer.encode(render(record), add_special_tokens=False)[:longest]
        logits = model(torch.tensor([ids], device=model.device)).logits[0, :-1].float()
        labels = torch.tensor(ids[1:], device=model.device)
        nats += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
        tokens += len(ids) - 1
        size += len(tokenizer.decode([token for token in ids if token >= SPECIAL_IDS]).encode())
    return {
        "documents": len(records),
        "tokens": tokens,
        "nats per token": round(nats / tokens, 4),
        "perplexity": round(math.exp(nats / tokens), 2),
        "bits per byte": round(nats / size / math.log(2), 4),
    }


def opening(record: dict[str, Any], tokenizer: PreTrainedTokenizerFast) -> tuple[str, list[int]]:
    """Return what is shown of a prompt and its token ids: the first question of a chat, or the start of a
    text."""
    if "text" in record:
        ids = tokenizer.encode(record["text"])[:48]
        return tokenizer.decode(ids[1:]), ids
    asked = []
    for message in record["messages"]:
        if message["role"] == "assistant":
            break
        asked.append(message)
    ids = tokenizer.encode(render({"messages": asked}) + "<|assistant|>", add_special_tokens=False)
    return asked[-1]["content"], ids


@torch.inference_mode()
def speak(model: PreTrainedModel, ids: list[int], budget: int) -> list[int]:
    """Return the greedy continuation of a prompt."""
    given = torch.tensor([ids], device=model.device)
    out = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=budget, do_sample=False)
    return out[0, len(ids) :].tolist()


def report(results: dict[str, Any]) -> str:
    """Return the results as markdown."""
    lines = [
        "| kind | documents | tokens | nats per token | perplexity | bits per byte |",
        "|---|---|---|---|---|---|",
    ]
    for kind, row in results["measured"].items():
        lines.append(f"| {kind} | " + " | ".join(str(value) for value in row.values()) + " |")
    for sample in results["samples"]:
        lines += ["", f"**{sample['kind']}** ({sample['source']})", "", "```text", sample["prompt"], "--->"]
        lines += [sample["answer"].strip().replace("```", "'''"), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=Path, required=True, help="folder that corpora.py wrote")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="path of the two reports, without an ending")
    parser.add_argument("--documents", type=int, default=100, help="held-out documents of each kind to measure on")
    parser.add_argument("--longest", type=int, default=384, help="tokens of a document at most")
    parser.add_argument("--samples", type=int, default=3, help="continuations of each kind")
    parser.add_argument("--budget", type=int, default=120, help="tokens of a continuation at most")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    if torch.cuda.is_available():
        model.to("cuda")
    results: dict[str, Any] = {"measured": {}, "samples": []}
    for kind in KINDS:
        records = list(read(options.splits / "heldout" / f"{kind}.jsonl", options.documents))
        results["measured"][kind] = measure(model, tokenizer, records, options.longest)
        short = [record for record in records if len(opening(record, tokenizer)[1]) < 200]
        for record in short[: options.samples]:
            prompt, ids = opening(record, tokenizer)
            said = tokenizer.decode(speak(model, ids, options.budget), skip_special_tokens=True)
            results["samples"].append({"kind": kind, "source": record["source"], "prompt": prompt, "answer": said})
    options.out.with_suffix(".json").write_text(
        json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    options.out.with_suffix(".md").write_text(report(results), encoding="utf-8")
    print(report(results))


if __name__ == "__main__":
    main()
