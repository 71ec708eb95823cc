"""The result and the record of a training run."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specframe.files.provenance import describe_hardware
from specframe.files.text import render_table
from specframe.recipes.versions import installed
from specframe.training.state import RunState

PACKAGES = ("specframe", "torch", "transformers", "accelerate", "safetensors", "datasets")


@dataclass(frozen=True)
class Report:
    """The outcome of `train`."""

    folder: Path
    """Folder of the best checkpoint; the last one is in its folder `last`."""
    steps: int
    """Optimizer steps done, over all resumptions."""
    resumed: int
    """The step from which this call resumed; 0 for a new run."""
    seconds: float
    """Training time in seconds, over all resumptions."""
    losses: dict[str, float]
    """The last report's losses."""
    validation: dict[str, float]
    """The last validation's figures; empty without validation."""
    best: float | None
    """The best validation's tau."""

    def _repr_html_(self) -> str:
        """The figures as a table, for notebooks."""
        best = {} if self.best is None else {"best tau": self.best}
        figures = {**self.losses, **{f"validation: {name}": value for name, value in self.validation.items()}, **best}
        rows = [(name, f"{value:.4g}") for name, value in figures.items()]
        return render_table(("figure", "value"), rows, f"{self.steps} steps in {self.seconds:.0f} s: {self.folder}")


def make_report(folder: Path, run_state: RunState, resumed: int) -> Report:
    """The report of a run with this final state."""
    return Report(
        folder=folder,
        steps=run_state.step,
        resumed=resumed,
        seconds=run_state.seconds,
        losses=run_state.losses[-1] if run_state.losses else {},
        validation=run_state.history[-1] if run_state.history else {},
        best=run_state.best,
    )


def record(run_state: RunState, module: nn.Module, device: torch.device) -> dict[str, Any]:
    """The content of train.json: settings and data, losses, validations, versions, hardware."""
    return {
        **run_state.identity,
        "steps_done": run_state.step,
        "seconds": run_state.seconds,
        "tokens": run_state.tokens,
        "parameters": sum(p.numel() for p in module.parameters()),
        "losses": run_state.losses,
        "validations": run_state.history,
        "best": run_state.best,
        "device": str(device),
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in PACKAGES},
        "hardware": describe_hardware(),
    }


def describe(component: object) -> dict[str, Any]:
    """A component's class and its plain options, read from its attributes; nested components likewise."""
    kind = type(component)
    plain = (bool, int, float, str)
    public = {name: value for name, value in sorted(vars(component).items()) if not name.startswith("_")}
    options: dict[str, Any] = {name: value for name, value in public.items() if isinstance(value, plain)}
    options |= {
        name: list(value)
        for name, value in public.items()
        if isinstance(value, list | tuple) and all(isinstance(each, plain) for each in value)
    }
    nested = {name: describe(value) for name, value in public.items() if callable(value) and hasattr(value, "__dict__")}
    return {"class": f"{kind.__module__}.{kind.__qualname__}", **options, **nested}
