"""Verifiers that judge the very same drafts, while `recursive` decodes the bench's prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import torch
from sample import prompts
from torch import Tensor

from specframe import Pipeline
from specframe.components.verifiers.block import Block
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.components.verifiers.traversal import Traversal
from specframe.kernel.types import Cycle, Verdict
from specframe.plugin import AllLaws, Laws, RandomSource, SeededRandom, TokenTree, TreePolicy, Verifier
from specframe_trees.spectr.kseq import KSeq
from specframe_trees.spectr.transport import Transport

Note = TypeVar("Note")


class Thrifty(Transport):
    """`transport` that holds one tournament where all rows have the same laws.

    Its verdicts are transport's own; copies of one draft take a fraction of the time.
    """

    def tournament(self, left: Tensor, q: Tensor, unreplaced: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The classes, wins and the chosen token's law of `Transport`."""
        same = [(each == each[:1]).all() for each in (left, q, unreplaced)]
        if not torch.stack(same).all():
            return super().tournament(left, q, unreplaced)
        kind, beats, law = super().tournament(left[:1], q[:1], unreplaced[:1])
        return kind.expand_as(q), beats.expand(len(q), -1, -1), law.expand_as(q)


VERIFIERS: dict[str, Verifier] = {
    "recursive": Recursive(),
    "block": Block(),
    "traversal": Traversal(),
    "kseq": KSeq(),
    "transport": Thrifty(),
    "match": Match(),
}


class Panel:
    """Verifiers that judge the same drafts, each with its own source of the same coins."""

    def __init__(self, verifiers: Mapping[str, Verifier], copies: int) -> None:
        self.verifiers = verifiers
        self.copies = copies
        self._streams = {name: SeededRandom(1, copies) for name in verifiers}

    def judge(self, drafts: TokenTree, p: Tensor) -> dict[str, float]:
        """The tokens that each emits, bonus included, on average over drafts of as many rows as copies, p [C, N, V]."""
        found = {}
        for name, verifier in self.verifiers.items():
            self._streams[name].verify.advance()
            found[name] = float(verifier.verify(drafts, AllLaws(p), self._streams[name].verify).count.double().mean())
        return found

    def judge_copies(self, draft: TokenTree, p: Tensor) -> dict[str, float]:
        """The same for copies of one row, p [1, N, V]."""
        rows = torch.zeros(self.copies, dtype=torch.int64)
        return self.judge(draft.take(rows), p.expand(self.copies, -1, -1))


class Observed(Generic[Note]):
    """`recursive`, with a note taken of every draft: note(tree of one row, p [1, N, V])."""

    lossless, needs = Recursive.lossless, Recursive.needs

    def __init__(self, note: Callable[[TokenTree, Tensor], Note]) -> None:
        self._note = note
        self.notes: list[list[Note]] = []
        """Each cycle's, row by row."""

    def verify(self, draft: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The verdict of `recursive`."""
        p = laws.all
        if draft.levels:  # an admission drafts nothing
            rows = torch.arange(len(p)).split(1)
            self.notes.append([self._note(draft.take(row), p[row]) for row in rows])
        return Recursive().verify(draft, laws, random)


def follow(
    pipeline: Pipeline,
    tree: TreePolicy,
    temperature: float,
    limit: int,
    tokens: int,
    note: Callable[[TokenTree, Tensor], Note],
) -> list[list[Note]]:
    """Returns the notes on each prompt's drafts, cycle by cycle, while `recursive` decoded them."""
    observed = Observed(note)
    pipeline = pipeline.with_parts(tree=tree, verifier=observed)
    rows = prompts(pipeline, limit)
    settings = replace(pipeline.sampling, max_new_tokens=tokens, temperature=temperature)
    requests = pipeline.requests(rows, settings, seed=0)
    notes: list[list[Note]] = [[] for _ in rows]
    with pipeline.open(requests, slots=len(rows)) as session:

        def collect(cycle: Cycle) -> None:
            if cycle.draft.levels:
                for row, found in zip(session.numbers, observed.notes[-1], strict=True):
                    notes[row].append(found)

        session.run(requests, collect)
    return [found for found in notes if found]
