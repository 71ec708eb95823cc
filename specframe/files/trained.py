"""Training record of a drafter's folder, wherever the folder has been since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specframe.kernel.errors import SpecframeError
from specframe.neural import checkpoint

PROVENANCE = "specframe.json"
"""Record of an exported or imported folder's origin."""
TRAINED = "train*.json"


def read_training(weights: str | Path) -> dict[str, Any]:
    """The records of training, by file: the folder's own train.json, or those that went along with an export or import.

    Empty where nothing is recorded. Raises WeightsError where there is no folder.
    """
    folder = checkpoint.locate(weights)
    found = {path.name: _without_losses(_read(path)) for path in sorted(folder.glob(TRAINED))}
    figures = _read(folder / PROVENANCE).get("figures")
    carried = figures.get("trained") if isinstance(figures, dict) else None
    return {name: record for name, record in found.items() if record} or (carried if isinstance(carried, dict) else {})


def claimed(weights: str | Path | None) -> list[float]:
    """Returns how often the first choice was the target's, by depth of a chain, in the best validation.

    Empty where nothing is recorded.
    """
    if weights is None:
        return []
    try:
        record, *_ = read_training(weights).values()
        best = max(record["validations"], key=lambda figures: figures["tau"])
        names = [f"accuracy.{level}" for level in range(1, len(best) + 1)]
        return [float(best[name]) for name in names if name in best]
    except (LookupError, TypeError, ValueError, SpecframeError):
        return []


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none to be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _without_losses(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "losses"}
