"""Trees, chains and plain decoding of a hybrid target in turn: ``python research/analysis/hybrid.py --splits SPLITS``.

Prompts are the first questions of held-out chats. Seconds are processor time of one thread, whose ratios change
little under load; a repeat decodes all prompts in each way before the next repeat begins.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import specframe

FLOOR = 0.005
"""Smallest path probability of a successor in a tree: trees are filled up."""
LEVELS = 5
Way = tuple[dict[str, Any], dict[str, Any] | None]
"""A drafter and its tree policy."""


def copies(nodes: int, **options: float) -> Way:
    """A copy of the text with likely successors, of so many nodes."""
    return {"use": "suffix-recycling", "nodes": nodes, "cap": nodes - 1, **options}, None


def ways(sizes: Sequence[int], weights: Mapping[str, str]) -> dict[str, Way]:
    """The ways to decode: plain, then for every number of nodes the chain and the tree, of each drafter."""
    found: dict[str, Way] = {"plain": ({"use": "none"}, None)}
    for nodes in sizes:
        found[f"chain of {nodes}"] = copies(nodes, ranks=1, floor=1e-9)
        found[f"tree of {nodes}"] = copies(nodes, floor=FLOOR)
    for use, folder in weights.items():
        drafter = {"use": use, "weights": folder}
        found[f"{use}, chain"] = drafter, {"use": "chain", "depth": LEVELS}
        found[f"{use}, tree"] = drafter, {"use": "dynamic", "depth": LEVELS, "width": 4, "nodes": 16}
    return found


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
    parser.add_argument("--nodes", type=int, nargs="*", default=[16, 32], help="of chains and trees without a model")
    parser.add_argument("--eagle", help="weights of EAGLE's drafter, such as zoo://state-5m-eagle")
    parser.add_argument("--model", help="weights of a drafting model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    target = {"use": "hf", "model": options.target, "dtype": "float32"}
    sampling = {"temperature": options.temperature, "max_new_tokens": options.tokens}
    weights = {"eagle": options.eagle, "model": options.model}
    made = {
        name: specframe.compose(target=target, drafter=drafter, tree=tree, sampling=sampling, run={"chat": True})
        for name, (drafter, tree) in ways(options.nodes, {use: at for use, at in weights.items() if at}).items()
    }
    prompts = questions(options.splits, options.prompts)
    seconds: dict[str, list[float]] = {name: [] for name in made}
    texts, taus = {}, {}
    for repeat in range(-1, options.repeats):  # the first one warms up
        for name, way in made.items():
            began = time.process_time()
            result = way.generate(prompts)
            if repeat >= 0:
                seconds[name].append(time.process_time() - began)
            texts[name] = result.tokens
            taus[name] = result.acceptance.tau
    for name, each in seconds.items():
        plain = statistics.median(a / b for a, b in zip(seconds["plain"], each, strict=True))
        low, high = min(each), max(each)
        chain = name.replace("tree", "chain")
        chained = statistics.median(a / b for a, b in zip(seconds[chain], each, strict=True))
        words = f"{plain:.2f} x plain, {chained:.2f} x the chain, tau {taus[name]:.3f}"
        took = f"{statistics.median(each):.2f} s ({low:.2f} to {high:.2f})"
        print(f"{name}: {words}, {took}; {differences(texts['plain'], texts[name])}")


def differences(plain: list[list[int]], texts: list[list[int]]) -> str:
    """The prompts whose texts differ, and the first token that does; none at temperature 0, ties aside."""
    found = [
        f"prompt {row} from token {next(i for i, pair in enumerate(zip(*both, strict=False)) if pair[0] != pair[1])} on"
        for row, both in enumerate(zip(plain, texts, strict=True))
        if both[0] != both[1]
    ]
    return "texts equal" if not found else "texts differ: " + ", ".join(found)


if __name__ == "__main__":
    main()
