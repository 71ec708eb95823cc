"""Tree, chain and plain decoding of a hybrid target in turn: ``python research/analysis/hybrid.py --splits SPLITS``.

Prompts are the first questions of held-out chats. Seconds are processor time of one thread, whose ratios change
little under load; a repeat decodes all prompts in each way before the next repeat begins.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import specframe

TREE = {"use": "suffix-recycling", "nodes": 16}
CHAIN = {"use": "suffix-recycling", "nodes": 16, "ranks": 1, "floor": 1e-9}
WAYS = {"plain": "none", "chain": CHAIN, "tree": TREE}


def questions(splits: Path, count: int) -> list[str]:
    """Return the first message of as many held-out chats of each kind."""
    found = []
    for kind in ("dialogue", "maths", "code"):
        lines = (splits / "heldout" / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
        chats = [chat for chat in map(json.loads, lines) if "messages" in chat]
        found += [chat["messages"][0]["content"] for chat in chats[:count]]
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=Path, required=True, help="folder that corpora.py wrote")
    parser.add_argument("--target", default="zoo://state-5m")
    parser.add_argument("--prompts", type=int, default=4, help="held-out prompts of each kind")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    target = {"use": "hf", "model": options.target, "dtype": "float32"}
    sampling = {"temperature": options.temperature, "max_new_tokens": options.tokens}
    ways = {
        name: specframe.compose(target=target, drafter=drafter, sampling=sampling, run={"chat": True})
        for name, drafter in WAYS.items()
    }
    prompts = questions(options.splits, options.prompts)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    texts, taus = {}, {}
    for repeat in range(-1, options.repeats):  # the first one warms up
        for name, way in ways.items():
            began = time.process_time()
            result = way.generate(prompts)
            if repeat >= 0:
                seconds[name].append(time.process_time() - began)
            texts[name] = result.tokens
            taus[name] = result.acceptance.tau
    assert texts["tree"] == texts["chain"] == texts["plain"], "texts differ"
    for name, each in seconds.items():
        others = [f"{statistics.median(a / b for a, b in zip(seconds[o], each, strict=True)):.2f} x {o}" for o in ways]
        low, high = min(each), max(each)
        print(f"{name}: tau {taus[name]:.2f}, {statistics.median(each):.2f} s ({low:.2f} to {high:.2f});", *others)


if __name__ == "__main__":
    main()
