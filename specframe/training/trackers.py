"""A training's figures for TensorBoard, Weights & Biases, MLflow and others, through Accelerate's trackers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specframe.kernel.errors import InputError, needs_extra
from specframe.recipes.registry import one_line, suggest

with needs_extra("train", "training"):
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, get_available_trackers


def require_trackers(names: Sequence[str]) -> None:
    """Raises InputError for a tracker that Accelerate does not know, or whose package is not installed."""
    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            known = ", ".join(sorted(LOGGER_TYPE_TO_CLASS))
            raise InputError(f"train.log: there is no tracker {name}{suggest(name, LOGGER_TYPE_TO_CLASS)} ({known})")
        if name not in [str(each) for each in get_available_trackers()]:
            raise InputError(f"train.log: the package of {name} is not installed; install it, or leave {name} out")


class Trackers:
    """Watches a training for trackers that `require_trackers` has let pass.

    Args:
        names: the trackers, as Accelerate names them.
        folder: the training's folder; its name is the run's, and trackers that write files write them there.
        config: the run's settings, plain values.
    """

    def __init__(self, names: Sequence[str], folder: Path, config: Mapping[str, Any]) -> None:
        self.names, self.folder, self.config = names, folder, dict(config)
        self.trackers: list[GeneralTracker] = []

    def start(self, done: int, total: int, note: str) -> None:
        """Opens the trackers with the run's settings. Raises InputError for one that cannot be opened."""
        for name in self.names:
            kind = LOGGER_TYPE_TO_CLASS[name]
            place = {"logging_dir": str(self.folder)} if kind.requires_logging_directory else {}
            if name == "wandb" and "WANDB_DIR" not in os.environ:
                place["dir"] = str(self.folder)
            try:
                tracker = kind(self.folder.name, **place)
                if hasattr(tracker, "start"):  # since Accelerate 1.9
                    tracker.start()
                tracker.store_init_configuration(self.config)
            except Exception as error:  # a service may refuse in any way
                raise InputError(f"train.log: {name} cannot be opened: {one_line(error)}") from error
            self.trackers.append(tracker)

    def report(self, step: int, figures: Mapping[str, float]) -> None:
        """Logs the figures under their names."""
        self._log(step, {name: float(value) for name, value in figures.items()})

    def validated(self, step: int, figures: Mapping[str, float]) -> None:
        """Logs the figures as `validation/NAME`."""
        self._log(step, {f"validation/{name}": float(value) for name, value in figures.items()})

    def finish(self, note: str) -> None:
        """Closes the trackers."""
        for tracker in self.trackers:
            tracker.finish()
        self.trackers.clear()  # a run's branches open them again

    def _log(self, step: int, figures: dict[str, float]) -> None:
        for tracker in self.trackers:
            tracker.log(figures, step=step)
