"""Sections of the recipes that `train --auto` writes: an EAGLE drafter for minutes of training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

VOCABULARY = 8192
"""Size of the draft vocabulary."""
TREE = {"use": "dynamic", "depth": 4, "width": 4, "nodes": 15}
COPIES = {"use": "suffix", "cap": 10}
LOSSES = [{"use": "feature-regression", "weight": 0.1}, {"use": "cross-entropy", "weight": 1.0}]
BATCH, LENGTH = 8, 256
SETTINGS = {
    "rollout": {"use": "teacher-forced", "noise": 0.05},
    "batch": BATCH,
    "length": LENGTH,
    "pack": True,
    "lr": 1.0e-3,
    "warmup": 0.05,
    "fit": 160,
    "precision": "auto",
    "validation": 0.05,
    "validate_every": 100,
    "save_every": 50,
}
"""Settings of docs/tutorials/faster-model.md, for minutes of training on a laptop."""


def eagle(counts: Path) -> dict[str, Any]:
    """Returns the drafter section, whose draft vocabulary has the most frequent tokens in a file of counts."""
    head = {"use": "trimmed", "keep": VOCABULARY, "counts": str(counts), "quantize": "int8"}
    return {"use": "eagle", "quantize": "int8", "head": head}


def teacher(target: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the target section for training: in float32 if the processor has no bfloat16 products."""
    import torch

    from specframe.plugin import multiplies_bfloat16

    if torch.cuda.is_available() or multiplies_bfloat16() or target.get("quantize"):
        return dict(target)
    return {**target, "dtype": "float32", "native": False}
