"""Settings that all contestants of a bench share, and the combinations of values that a bench varies in one recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from specframe.files.checks import find_check
from specframe.kernel.errors import InputError

LONGEST = 86400
"""Seconds of a pause."""


@dataclass(frozen=True)
class ContestSettings:
    """Amount and order of the decoding. Raises InputError for settings that measure nothing."""

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
class Variant:
    """A recipe file with the overrides that make it this contestant."""

    recipe: str
    changes: tuple[str, ...] = ()
    """`key=value`, as on the command line."""

    @property
    def label(self) -> str:
        """Difference from the recipe's other variants: `verifier=block draw=iid tree=chain depth=4`."""
        return " ".join(map(_shorten, self.changes))


def make_variants(recipe: str, variations: Sequence[str]) -> list[Variant]:
    """The recipe with one value of every variation, `KEY=A,B,C` each, in the order of their product.

    Raises InputError for a variation that names no key or fewer than two values.
    """
    choices = [tuple(_read(variation)) for variation in variations]
    return [Variant(recipe, changes) for changes in product(*choices)]


def _read(variation: str) -> Iterator[str]:
    key, _, text = variation.partition("=")
    values = list(_split(text))
    if not key.strip() or len(values) < 2 or not all(values):
        raise InputError(f"--vary {variation} varies nothing; give it as KEY=A,B: a key of the recipe and its values")
    for value in values:
        yield f"{key.strip()}={value}"


def _split(text: str) -> Iterator[str]:
    """The parts of a text between commas that stand in no bracket: values may be YAML lists or sections."""
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
