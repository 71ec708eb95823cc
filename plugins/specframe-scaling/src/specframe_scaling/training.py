"""Training of a sweep: a process for each size and seed, several in parallel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from specframe import SpecframeError
from specframe.plugin import make_folder
from specframe_scaling.grid import SweepGrid, Trunk

LOG = "train.log"
WARMUP = 10
"""Steps of warm-up unless the user gives another number: the shortest run has some dozens of steps."""


@dataclass(frozen=True)
class Sweep:
    """A recipe, its overrides and the grid, trained into a folder."""

    recipe: str
    changes: Sequence[str]
    grid: SweepGrid
    out: Path

    def command(self, trunk: Trunk) -> list[str]:
        """Returns the command that trains a trunk, or continues it after an interruption."""
        given = [f"train.warmup={WARMUP}", *self.changes, *self.grid.training(trunk, self.out)]
        return [sys.executable, "-m", "specframe", "train", self.recipe, *given]

    def is_done(self, trunk: Trunk) -> bool:
        """Returns whether all points of a trunk are trained."""
        return all((folder / "train.json").exists() for folder in self.grid.folders(trunk, self.out).values())

    def train(self, jobs: int = 1) -> Iterator[Trunk]:
        """Trains what is missing, `jobs` trunks at a time, and yields each when it is finished.

        Raises SpecframeError with the last line of the log of a failed training; the others end first.
        """
        waiting = [trunk for trunk in self.grid.trunks if not self.is_done(trunk)]
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            running = {pool.submit(self._run, trunk): trunk for trunk in waiting}
            try:
                for done in as_completed(running):
                    done.result()
                    yield running[done]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _run(self, trunk: Trunk) -> None:
        folder = self.out / trunk.name
        make_folder(folder)
        with (folder / LOG).open("a", encoding="utf-8") as log:
            status = subprocess.run(self.command(trunk), stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        if status:
            lines = (folder / LOG).read_text(encoding="utf-8", errors="replace").split("\n")
            reason = next((line for line in reversed(lines) if line.strip()), f"status {status}")
            raise SpecframeError(f"the training of {trunk.name} failed: {reason.strip()} (all of it: {folder / LOG})")
