"""Settings that all contestants of a bench share, rounds in their order, and the values that vary in a recipe."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product

from specframe.bench.contest.datasets import Question
from specframe.files.checks import find_check
from specframe.kernel.errors import InputError

LONGEST = 86400
"""Seconds of a pause."""


@dataclass(frozen=True)
class ContestSettings:
    """Amount and order of the decoding. Raises InputError for invalid settings."""

    batch: int = 1
    repeats: int = 3
    seed: int = 0
    turns: int = 1
    """Largest number of turns of a conversation that are decoded."""
    limit: int | None = None
    """Number of prompts of all sets together."""
    pause: float = 0.0
    """Seconds between repeats: spread in time, they sample more of the machine's load variation."""
    check: str | None = None
    """The check of all answers; None: each set's own."""
    run_code: bool = False
    """True to let the check `tests` run code that a model wrote."""
    bound: bool = False
    """True to compute the acceptance of the best verifier: one more decoding of each prompt, not timed."""

    def __post_init__(self) -> None:
        for name in ("batch", "repeats", "turns", "limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} {value} measures nothing; use 1 or more")
        if self.check is not None:
            find_check(self.check, run_code=self.run_code)
        if not 0 <= self.pause <= LONGEST:
            raise InputError(f"a pause of {self.pause:g} seconds is out of range; use 0 to {LONGEST}")


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
    """Returns all rounds, repeat by repeat, so that a drift of the machine's speed affects all prompts equally."""

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

    In every n consecutive rounds of n contestants each one takes each position once (a rotation); the
    rotated order is shuffled for each n rounds.
    """
    lap, first = divmod(index, len(names))
    order = list(names)
    random.Random(f"{seed}/{lap}").shuffle(order)
    return order[first:] + order[:first]


@dataclass(frozen=True)
class Variant:
    """A recipe file with the overrides that make it this contestant."""

    recipe: str
    changes: tuple[str, ...] = ()
    """Values `key=value` that are varied: they are part of its name."""
    overrides: tuple[str, ...] = ()
    """Further values `key=value` of this contestant alone."""
    name: str = ""
    """The name of its results; empty: the recipe's file name."""

    @property
    def label(self) -> str:
        """Difference from the recipe's other variants: `verifier=block draw=iid tree=chain depth=4`."""
        return " ".join(map(_shorten, self.changes))


def make_variants(variant: Variant, variations: Sequence[str]) -> list[Variant]:
    """The variant with one value of every variation, `KEY=A,B,C` each, in the order of their product.

    Raises InputError for a variation that names no key or fewer than two values.
    """
    choices = [tuple(_read(variation)) for variation in variations]
    return [replace(variant, changes=changes) for changes in product(*choices)]


def _read(variation: str) -> Iterator[str]:
    key, _, text = variation.partition("=")
    values = list(_split(text))
    if not key.strip() or len(values) < 2 or not all(values):
        raise InputError(f"--vary {variation} varies nothing; give it as KEY=A,B: a key of the recipe and its values")
    for value in values:
        yield f"{key.strip()}={value}"


def _split(text: str) -> Iterator[str]:
    """Yields the parts of a text between commas outside of brackets, as values may be YAML lists or sections."""
    depth, start = 0, 0
    for index, letter in enumerate(text):
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            yield text[start:index].strip()
            start = index + 1
    yield text[start:].strip()


def _shorten(change: str) -> str:
    """`verifier.use=block` as `verifier=block`, `tree.draw=iid` as `draw=iid`, a section as its options."""
    key, _, value = change.partition("=")
    parts = key.split(".")
    name = parts[-2] if parts[-1] == "use" and len(parts) > 1 else parts[-1]
    if not value.startswith("{"):
        return f"{name}={value}"
    options = (option.partition(":") for option in _split(value[1:-1]))
    return " ".join(f"{name if key.strip() == 'use' else key.strip()}={text.strip()}" for key, _, text in options)
