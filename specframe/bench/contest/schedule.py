"""The schedule: rounds over the prompts, with a turn for every contestant in each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from specframe.bench.contest.datasets import Question


@dataclass(frozen=True)
class Round:
    """One repeat of one batch of prompts, for all contestants."""

    index: int
    """Index among all rounds."""
    repeat: int
    questions: tuple[Question, ...]
    turns: int
    """Number of turns of the conversation that are decoded; the same for all prompts of the batch."""

    @property
    def key(self) -> tuple[int, tuple[str, ...]]:
        """Key of the round in a file."""
        return self.repeat, tuple(question.id for question in self.questions)


def plan_rounds(questions: Sequence[Question], *, batch: int, repeats: int, turns: int) -> list[Round]:
    """Returns all rounds: one repeat of everything before the next, so a drift of the machine meets all prompts."""

    def length(question: Question) -> int:
        return min(turns, len(question.turns))

    batches = [
        (tuple(group[start : start + batch]), count)
        for count, same in groupby(sorted(questions, key=length), key=length)
        for group in [list(same)]
        for start in range(0, len(group), batch)
    ]
    pairs = [(repeat, chunk, count) for repeat in range(repeats) for chunk, count in batches]
    return [Round(index, repeat, chunk, count) for index, (repeat, chunk, count) in enumerate(pairs)]


def take_turns(names: Sequence[str], index: int, seed: int) -> list[str]:
    """The order of contestants in the round or conversation turn of that index.

    In every run of as many indices as there are contestants, each holds each place once; the order
    that is rotated is drawn anew for each such run.
    """
    lap, first = divmod(index, len(names))
    order = list(names)
    random.Random(f"{seed}/{lap}").shuffle(order)
    return order[first:] + order[:first]
