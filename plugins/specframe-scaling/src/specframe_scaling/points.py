"""The points of a sweep: trained drafters with their measurements, one file each, and all of them in one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from specframe import InputError
from specframe.plugin import write_json

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Point:
    """A drafter of a size, trained on a number of tokens, and the acceptance of its drafts, prompt by prompt."""

    target: str
    """Name and fingerprint of the target it was trained for."""
    data: str
    """Fingerprint of its training texts; the held-out texts depend on the seed."""
    device: str
    tokens: int
    layers: int
    width: int
    parameters: int
    seed: int
    seconds: float
    """Seconds of its training as if trained alone."""
    cycles: list[float]
    """[P] cycles of each prompt."""
    reached: list[list[float]]
    """[P, D] cycles whose accepted path has a node of depth 1, 2, ..."""

    @property
    def size(self) -> tuple[int, int]:
        """Layers and width."""
        return self.layers, self.width

    @property
    def tau(self) -> float:
        """Tokens committed per cycle, the bonus included."""
        return 1 + sum(map(sum, self.reached)) / max(sum(self.cycles), 1)


@dataclass(frozen=True)
class Speed:
    """Cycles of several rows, all of them live."""

    layers: int
    width: int
    batch: int
    nodes: list[float]
    """Drafted nodes of each level, averaged over cycles and rows."""
    plain_seconds: float
    """Seconds of a target pass over the rows without drafts."""
    target_seconds: float
    """Seconds of a target pass over the rows' drafts."""
    draft_seconds: float
    """Seconds of a drafter's pass."""
    other_seconds: float
    """Seconds of the rest of a cycle."""
    tokens_per_second: float
    tau: float


@dataclass(frozen=True)
class Passes:
    """Times of passes on one machine: the target's by the nodes of all rows together, and drafters' over one row."""

    nodes: list[int]
    seconds: list[float]
    draft: dict[str, float]
    """A drafter's seconds, by the name of its size."""

    def cost(self, nodes: float) -> float:
        """Returns the seconds of the target's pass: interpolated between sizes, extrapolated from the last half."""
        most = self.nodes[-1]
        if nodes <= most:
            return float(np.interp(nodes, self.nodes, self.seconds))
        half = float(np.interp(most / 2, self.nodes, self.seconds))
        return self.seconds[-1] + (self.seconds[-1] - half) / (most / 2) * (nodes - most)


def name_of(size: tuple[int, int]) -> str:
    """Returns the name of a size."""
    return f"{size[0]} x {size[1]}"


@dataclass(frozen=True)
class Results:
    """The measurements of a sweep."""

    points: list[Point]
    speeds: list[Speed] = field(default_factory=list)
    passes: Passes | None = None
    """None on an accelerator, where passes are not timed by size."""

    @classmethod
    def read(cls, path: Path) -> Results:
        """Reads the results of a file. Raises InputError for an invalid file, or for impossible points."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            passes = data.get("passes") and Passes(**data["passes"])
            found = cls([Point(**each) for each in data["points"]], [Speed(**each) for each in data["speeds"]], passes)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} holds no results of `specframe scaling`") from error
        found.check(path)
        return found

    def write(self, path: Path) -> None:
        """Writes them as JSON."""
        write_json(path, asdict(self))

    def check(self, path: Path) -> None:
        """Raises InputError for points of different targets or data, and for too few of them."""
        if len(targets := sorted({point.target for point in self.points})) > 1:
            raise InputError(f"{path} has points of different targets, {' and '.join(targets)}: fit each alone")
        if len({(point.seed, point.data) for point in self.points}) > len({point.seed for point in self.points}):
            raise InputError(f"{path} has points that were trained on different texts: fit each kind alone")
        if len({len(point.cycles) for point in self.points}) > 1:
            raise InputError(f"{path} has points that were measured on different prompts: measure all on the same")
        counts = sorted({round(np.log10(point.tokens), 2) for point in self.points})
        if len(counts) < 3:
            raise InputError(f"{path} has {len(counts)} token counts; a law needs three or more")
        if counts[-1] - counts[0] < 0.95:  # a run ends with a full step, so its tokens are slightly more than its count
            raise InputError(
                f"{path}: its token counts span a factor of {10 ** (counts[-1] - counts[0]):.1f}; a law needs ten"
            )

    @cached_property
    def tokens(self) -> Array:
        """[N] tokens of the points."""
        return np.array([point.tokens for point in self.points], dtype=float)

    @cached_property
    def parameters(self) -> Array:
        """[N] parameters of the points."""
        return np.array([point.parameters for point in self.points], dtype=float)

    @cached_property
    def cycles(self) -> Array:
        """[N, P] cycles."""
        return np.array([point.cycles for point in self.points], dtype=float)

    @cached_property
    def reached(self) -> Array:
        """[N, P, D] cycles that reached each depth."""
        depth = max(len(row) for point in self.points for row in point.reached)
        padded = [[row + [0.0] * (depth - len(row)) for row in point.reached] for point in self.points]
        return np.array(padded, dtype=float)

    def sizes(self) -> dict[tuple[int, int], int]:
        """The parameters of each size, layers and width, smallest first."""
        found = {point.size: point.parameters for point in self.points}
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def tokens_per_second(self, size: tuple[int, int]) -> float:
        """Returns the training speed of a size: that of its longest run."""
        longest = max((point for point in self.points if point.size == size), key=lambda point: point.tokens)
        return longest.tokens / longest.seconds


def read_record(folder: Path) -> Mapping[str, Any]:
    """Reads a training's record. Raises InputError if there is none."""
    try:
        record: Mapping[str, Any] = json.loads((folder / "train.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} holds no finished training: run the sweep with --train-only first") from error
    return record


def make_point(folder: Path, seed: int, cycles: Sequence[float], reached: Sequence[Sequence[float]]) -> Point:
    """Returns the point of a trained drafter in a folder, with the measurements of its decoding."""
    record = read_record(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    owner = config.get("trained_for") or {}
    return Point(
        target=" ".join(map(str, owner.values())) if isinstance(owner, dict) else str(owner),
        data=record["data"]["train"],
        device=record["device"],
        tokens=record["tokens"],
        layers=config.get("num_hidden_layers", 1),
        width=config.get("intermediate_size", 0),
        parameters=record["parameters"],
        seed=seed,
        seconds=record["seconds"],
        cycles=list(cycles),
        reached=[list(row) for row in reached],
    )
