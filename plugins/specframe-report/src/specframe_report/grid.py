"""A contestant's runs as arrays, prompts x conversation turns x repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specframe_report.intervals import Array

Run = Mapping[str, Any]
Cell = tuple[str, int, int]
"""A run's prompt, conversation turn and repeat."""


@dataclass(frozen=True)
class Axes:
    """Axes of a grid's cells; grids with the same axes can be compared cell by cell."""

    prompts: tuple[str, ...]
    turns: tuple[int, ...]
    repeats: tuple[int, ...]

    @classmethod
    def of(cls, runs: Sequence[Run], prompts: Sequence[str]) -> Axes:
        """Returns the axes that contain these runs, over the given prompts."""
        turns = sorted({run.get("turn", 0) for run in runs})
        return cls(tuple(prompts), tuple(turns), tuple(sorted({run["repeat"] for run in runs})))

    @property
    def size(self) -> tuple[int, int]:
        """Number of prompts and repeats."""
        return len(self.prompts), len(self.repeats)


class Grid:
    """One contestant's runs over some axes; cells without a run are NaN."""

    def __init__(self, runs: Sequence[Run], axes: Axes) -> None:
        known = {(p, t, r) for p in axes.prompts for t in axes.turns for r in axes.repeats}
        cells: dict[Cell, Run] = {(run["prompt"], run.get("turn", 0), run["repeat"]): run for run in runs}
        self.axes = axes
        self.cells = {cell: run for cell, run in cells.items() if cell in known}

    @property
    def runs(self) -> list[Run]:
        """The runs, in no particular order."""
        return list(self.cells.values())

    def read(self, value: Callable[[Run], float | None]) -> Array:
        """Returns a number of each run, [P, T, R]; NaN if it or the run is missing."""
        axes = self.axes
        shape = len(axes.prompts), len(axes.turns), len(axes.repeats)
        rows = [self._number((p, t, r), value) for p in axes.prompts for t in axes.turns for r in axes.repeats]
        return np.array(rows, dtype=np.float64).reshape(shape)

    def field(self, *path: str | int) -> Array:
        """Returns a field of each run, or a nested field: `field("phases", "draft")`."""
        return self.read(lambda run: dig(run, *path))

    def _number(self, cell: Cell, value: Callable[[Run], float | None]) -> float:
        run = self.cells.get(cell)
        number = None if run is None else value(run)
        return float("nan") if number is None else float(number)


def dig(data: Any, *path: str | int) -> Any:
    """Returns the value at the end of a path of keys and indices, or None if the path ends early."""
    for step in path:
        if isinstance(data, Mapping):
            data = data.get(step)
        elif isinstance(data, Sequence) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return None
    return data
