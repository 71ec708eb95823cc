"""run.json: the record of how a result was made, so that it can be repeated; and the record of a drafter's training."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from specframe.files.text import redact
from specframe.kernel.errors import SpecframeError
from specframe.neural.weights.checkpoint import locate, replacing
from specframe.recipes.build import Part, Plan
from specframe.recipes.recipe import dotted
from specframe.recipes.versions import installed

PACKAGES = ("specframe", "torch", "transformers", "safetensors", "accelerate", "pluggy", "omegaconf")
PROVENANCE = "specframe.json"
"""Record of an exported or imported folder's origin."""
TRAINED = "train*.json"


def describe_run(plan: Plan, figures: dict[str, Any], target: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the resolved recipe with each value's origin, versions, hardware and measurements.

    `target` records the model that decoded and, if it differs from the requested one, which that was, and why; plans of
    several recipes have none.
    """
    own = plan.parts.get("target")
    plugins = {part.entry.package for part in plan.parts.values()} - {"specframe", "local code"}
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *map(redact, sys.argv[1:])],
        "recipe": {"path": str(plan.recipe.path), "data": plan.recipe.data},
        "origins": {dotted(key): origin for key, origin in plan.recipe.origins.items()},
        "target": target or (own and {"model": own.options.get("model", own.entry.name)}),
        "weights": named_weights(plan),
        "versions": {name: installed(name) for name in (*PACKAGES, *sorted(plugins))},
        "python": platform.python_version(),
        "commit": _commit(),
        "hardware": describe_hardware(),
        "figures": figures,
    }


def named_weights(plan: Plan) -> dict[str, str]:
    """Returns the weights of the drafter and its parts, by option: `zoo://METHOD` as the drafter that was found."""
    return dict(_weights(plan.parts["drafter"], "drafter")) if "drafter" in plan.parts else {}


def _weights(part: Part, name: str) -> Iterator[tuple[str, str]]:
    for option, value in part.options.items():
        if isinstance(value, Part):
            yield from _weights(value, f"{name}.{option}")
        elif option == "weights" and value:
            yield f"{name}.weights", value


def describe_hardware() -> dict[str, Any]:
    """Describes the machine: processor, cores and threads used, memory, load, accelerator."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load": list(os.getloadavg()),
        "system": platform.platform(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def read_training(weights: str | Path) -> dict[str, Any]:
    """Returns the records of training, by file: the folder's own train.json, or those stored by an export or import.

    Empty if nothing is recorded. Raises WeightsError if there is no folder.
    """
    folder = locate(weights)
    found = {path.name: _without_losses(_read(path)) for path in sorted(folder.glob(TRAINED))}
    figures = _read(folder / PROVENANCE).get("figures")
    carried = figures.get("trained") if isinstance(figures, dict) else None
    return {name: record for name, record in found.items() if record} or (carried if isinstance(carried, dict) else {})


def claimed(weights: str | Path | None) -> list[float]:
    """Returns how often the first choice was the target's, by depth of a chain, in the best validation.

    Empty if nothing is recorded.
    """
    try:
        best = max(_last_training(weights)["validations"], key=lambda figures: figures["tau"])
        names = [f"accuracy.{level}" for level in range(1, len(best) + 1)]
        return [float(best[name]) for name in names if name in best]
    except (LookupError, TypeError, ValueError, SpecframeError):
        return []


def trained_steps(weights: str | Path | None) -> int | None:
    """Returns the number of steps of the weights' training; None if not recorded."""
    try:
        return int(_last_training(weights)["steps_done"])
    except (LookupError, TypeError, ValueError, SpecframeError):
        return None


def _last_training(weights: str | Path | None) -> Any:
    """Returns the first record of a training; empty without one."""
    return {} if weights is None else next(iter(read_training(weights).values()), {})


def write_json(path: Path, data: Any) -> None:
    """Writes JSON, completely or not at all. Raises SpecframeError if writing fails."""
    write_text(path, json.dumps(data, indent=2, default=str) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text, completely or not at all. Raises SpecframeError if writing fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecframeError(f"{path} cannot be written: {error.strerror or error}") from error


def _commit() -> str | None:
    """Returns the git commit of specframe's own checkout, if it runs from one."""
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _read(path: Path) -> dict[str, Any]:
    """Returns a JSON object; empty if none can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _without_losses(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "losses"}
