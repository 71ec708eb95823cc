"""The grid of a sweep: which drafters are trained, and their folders."""

from __future__ import annotations

import itertools
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specframe import InputError
from specframe.plugin import counted

UNITS = {"": 1, "k": 1_000, "M": 1_000_000, "G": 1_000_000_000}
TIMES = {"s": 1, "min": 60, "h": 3600, "d": 86400}
SIZES = {"layers": "layers", "width": "intermediate_size"}
"""The drafter's option for each size."""


def read_count(text: str) -> int:
    """Parses a number of tokens such as 250000, 50k or 1.5M. Raises InputError for other texts."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)", text.strip())
    if not found or not (count := round(float(found[1]) * UNITS[found[2]])):
        raise InputError(f"{text!r} is no number of tokens; give one such as 250000, 50k or 1.5M")
    return count


def read_counts(text: str) -> list[int]:
    """Parses numbers separated by commas, and sorts them."""
    return sorted({read_count(part) for part in text.split(",")})


def read_time(text: str) -> float:
    """Parses a time such as 90s, 20min or 2h as seconds. Raises InputError for other texts."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d)", text.strip())
    if not found or not float(found[1]):
        raise InputError(f"{text!r} is not a time; write for example 90s, 20min or 2h")
    return float(found[1]) * TIMES[found[2]]


@dataclass(frozen=True)
class Trunk:
    """A training run of one size and seed, whose branches are the points of all token counts."""

    layers: int | None
    """Number of decoder layers; None: the method's default."""
    width: int | None
    """Inner width of the MLPs; None: the target's."""
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        sizes = [f"{letter}{size}" for letter, size in (("L", self.layers), ("W", self.width)) if size is not None]
        return "-".join([*sizes, f"S{self.seed}"])

    @property
    def overrides(self) -> list[str]:
        """Returns the recipe's values that create a new drafter of this size."""
        sizes = {"layers": self.layers, "width": self.width}
        return [f"drafter.{SIZES[name]}={size}" for name, size in sizes.items() if size is not None]


@dataclass(frozen=True)
class SweepGrid:
    """Token counts, sizes and seeds of a sweep."""

    tokens: tuple[int, ...]
    layers: tuple[int, ...] = ()
    width: tuple[int, ...] = ()
    seeds: tuple[int, ...] = (0,)
    share: float = 0.15
    """Share of a run's steps over which the learning rate decreases to 0."""

    def __post_init__(self) -> None:
        if not self.tokens:
            raise InputError("a sweep needs numbers of tokens: --tokens 50k,160k,500k")

    @property
    def trunks(self) -> list[Trunk]:
        """Returns the training runs, those of the first seed first."""
        sizes = itertools.product(self.seeds, self.layers or (None,), self.width or (None,))
        return [Trunk(layers, width, seed) for seed, layers, width in sizes]

    def folders(self, trunk: Trunk, out: Path) -> dict[int, Path]:
        """Returns the folder of each point of a trunk, by token count."""
        last, whole = max(self.tokens), out / trunk.name
        return {tokens: whole if tokens == last else whole / f"tokens-{tokens}" for tokens in self.tokens}

    def training(self, trunk: Trunk, out: Path) -> list[str]:
        """Returns the overrides that turn the recipe's training into this trunk's."""
        marks = ", ".join(map(str, self.tokens))
        return [
            *trunk.overrides,
            f"train.out={out / trunk.name}",
            f"train.seed={trunk.seed}",
            "train.schedule=constant",
            f"train.cooldown={{at: [{marks}], share: {self.share}}}",
            "train.steps=null",
            "train.epochs=1",
            "train.minutes=null",
            "train.stages=null",
            "train.validate_every=1000000000",
            "run.prompts=[]",
        ]

    def as_data(self) -> dict[str, Any]:
        """Returns the grid as data for a file."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def check_sizes(grid: SweepGrid, drafter: Any) -> None:
    """Raises InputError for a drafter (a plan's part) that has no weights, or no option for a size of the grid."""
    name = drafter.entry.name
    if not _has(drafter, "weights"):
        raise InputError(f"the drafter {name} has no weights, so there is nothing to train more or less")
    for size, option in SIZES.items():
        if getattr(grid, size) and not _has(drafter, option):
            raise InputError(f"the drafter {name} has no option {option}: leave --{size} out")


def check_law(grid: SweepGrid) -> None:
    """Raises InputError for token counts to which no law can be fitted, before anything is trained."""
    if len(grid.tokens) < 3 or max(grid.tokens) < 10 * min(grid.tokens):
        raise InputError(
            f"--tokens has {counted(len(grid.tokens), 'count')} over a factor of "
            f"{max(grid.tokens) / min(grid.tokens):.1f}; a law needs three or more, over a factor of ten"
        )


def _has(drafter: Any, option: str) -> bool:
    try:
        drafter.value(option)
    except KeyError:
        return False
    return True
