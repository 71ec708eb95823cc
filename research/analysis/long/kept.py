"""Targets that keep a part of a prompt's keys and values: ``python research/analysis/long/kept.py QUESTIONS LENGTH``.

QUESTIONS is Spec-Bench's question.jsonl, LENGTH the most tokens of a prompt, as `approximate.py` makes them. Each
prompt is read once by the full target; then every KV selection drops what it does not choose, as the option `keep` of a
target does, and plain decoding goes on from there. *Agreement* is the share of places of the full target's text where
both have the same first choice. Times are those of the processor on one thread, so the shares of other programs on the
machine do not count, but their use of its memory does; agreement and answers depend on none.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any

import torch
from approximate import FASTDRAFT, NEW, TARGET, compose, is_right, long_prompts
from selections import begin
from torch import Tensor

import specframe
from specframe.certify.real import chain_tree
from specframe.components.targets.forward import kept
from specframe.kernel.types import Committed, Prompts, TokenTree
from specframe.sampling.greedy import follow_argmax

BUDGETS = (512, 1024)
SELECTIONS: dict[str, Any] = {
    "window": lambda budget: {"use": "window", "sinks": 4, "recent": budget - 4},
    "snapkv": lambda budget: {"use": "snapkv", "budget": budget},
    "speckv by the target": lambda budget: {"use": "speckv", "budget": budget},
    "speckv by FastDraft's model": lambda budget: {"use": "speckv", "budget": budget, "drafter": FASTDRAFT},
}


class Reading:
    """A prompt that the full target has read, to be shortened by one KV selection after another."""

    def __init__(self, pipeline: specframe.Pipeline, row: Sequence[int]) -> None:
        self.target: Any = pipeline.parts.target
        self.row = row
        self.begun = begin(pipeline, row, None)
        rows = self.target.memory()
        self._whole = rows.memory.every[:, :, :, : len(row)].clone()

    def shorten(self, kv_selection: Any) -> float:
        """Keeps what a KV selection chooses, or everything without one; returns the seconds that it took."""
        state, count = self.target._running(), torch.tensor([len(self.row)])
        state.rows.memory.every[:, :, :, : len(self.row)] = self._whole
        state.rows.offset = None
        state.rows.fill(count, [len(self.row)])
        state.rows.show(self.begun.queries)
        begun = process_time()
        if kv_selection is not None:
            prompts = Prompts(torch.tensor([[*self.row]]), count)
            given = self.begun.committed
            new = Committed(given.tokens, given.count, {}, given.root, prompts)
            kept.shorten(state, self.target.forward, kv_selection, new, self.target.context)
        return process_time() - begun

    def agreement(self, text: Sequence[int]) -> float:
        """The share of a text's tokens that are the most probable ones, the first of them, the root, left out."""
        logits = self.target.score(chain_tree(torch.tensor([[*text[:-1]]]))).logits[0]
        return mean(mine == theirs for mine, theirs in zip(logits.argmax(-1).tolist(), text[1:], strict=True))

    def text(self) -> tuple[list[int], float]:
        """The most probable text from here on, `NEW` tokens or to its end, and the seconds of a token."""
        root: Tensor = self.begun.committed.root
        text = [int(root)]
        begun = process_time()
        while len(text) < NEW and text[-1] not in self.target.ends:
            tree = TokenTree.root_only(root)
            verdict = follow_argmax(tree, self.target.score(tree).logits.argmax(-1))
            root = self.target.commit(tree, verdict).root
            text.append(int(root))
        return text, (process_time() - begun) / max(1, len(text) - 1)


def selections_for(target: Any) -> dict[str, Any]:
    """The KV selections of each budget, ready to choose for a target."""
    found = {}
    for budget in BUDGETS:
        for name, options in SELECTIONS.items():
            part = specframe.compose(target=target.full(), drafter={"use": "self", "kv_selection": options(budget)},
                                     tree={"use": "chain", "depth": 1}, verifier={"use": "match"})  # fmt: skip
            found[f"{name}, {budget}"] = part.parts.drafter.kv_selection
    return found


def main() -> None:
    """Prints the means over prompts, after each of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("length", type=int)
    parser.add_argument("--count", type=int, default=4, help="prompts (default: %(default)s)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    plain = compose(TARGET, {"use": "none"})
    target: Any = plain.parts.target
    selections = {"plain": None, **selections_for(target)}
    target._taps.request_queries()
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for prompt, answers in long_prompts(given.questions, plain.tokenizer, given.length, given.count):
        with torch.inference_mode():
            reading = Reading(plain, plain.encode(prompt))
            whole: list[int] = []
            for name, kv_selection in selections.items():
                once = reading.begun.seconds + reading.shorten(kv_selection)
                same = reading.agreement(whole) if whole else 1.0
                text, token = reading.text()
                whole = whole or text
                found[name].append((once, token, same, is_right(plain, text, answers)))
        print(f"-- {len(found['plain'])} prompts, the last of {len(reading.row)} tokens; load {os.getloadavg()[0]:.1f}")
        for name, runs in found.items():
            first, token, same, right = (mean(run[i] for run in runs) for i in range(4))
            print(f"{name}: first token {first:.2f} s, {1000 * token:.1f} ms a token, agreement {same:.2f}, "
                  f"right {right:.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
