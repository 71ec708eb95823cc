"""Conversion of pickled weights to safetensors: only tensors are unpickled; a file that would run code is refused."""

from __future__ import annotations

import pickle
import re
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from specframe.kernel.errors import WeightsError
from specframe.neural import checkpoint

WHOLE = "pytorch_model"
"""Name of a pickled model's file, and prefix of the names of its parts."""
PART = re.compile(rf"{WHOLE}-(\d+)-of-(\d+)\.bin")
"""Matches the name of a part: its number, and the number of parts."""


def pickled(folder: Path) -> list[Path]:
    """Returns the pickled files of a folder without a safetensors file; empty otherwise."""
    if any(folder.glob("*.safetensors")):
        return []
    return checkpoint.pickled(folder)


def convert(files: list[Path], out: Path) -> None:
    """Converts pickled files to safetensors in a folder, and copies the JSON files next to them.

    The files of a model become one, model.safetensors; others keep their names. Raises WeightsError for a file that
    contains anything but named tensors, or cannot be read, and for a missing part.
    """
    _require_parts(files)
    groups: dict[str, dict[str, Tensor]] = {}
    for path in files:
        name = checkpoint.WEIGHTS if path.name.startswith(WHOLE) else f"{path.stem}.safetensors"
        groups.setdefault(name, {}).update(_tensors(path))
    try:
        for name, tensors in groups.items():
            save_file(tensors, out / name, metadata={"format": "pt"})
        for path in files[0].parent.glob("*.json"):
            if not path.name.endswith(".index.json"):
                shutil.copyfile(path, out / path.name)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"cannot write the checkpoint to {out}: {checkpoint.reason(error)}") from error


def _require_parts(files: list[Path]) -> None:
    named = [(path, found) for path in files if (found := PART.fullmatch(path.name))]
    for path, found in named[:1]:
        for number in range(1, int(found[2]) + 1):
            part = path.with_name(f"{WHOLE}-{number:05}-of-{found[2]}.bin")
            if part not in files:
                raise WeightsError(f"part {number} of {int(found[2])}: {part} is absent; all parts lie in one folder")


def _tensors(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of one pickled file."""
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, AttributeError, pickle.UnpicklingError) as error:
        raise WeightsError(
            f"cannot read {path}: it holds more than tensors, or is damaged ({checkpoint.reason(error)[:200]})"
        ) from error
    if not isinstance(stored, dict) or not all(isinstance(part, Tensor) for part in stored.values()):
        raise WeightsError(f"cannot read {path}: it holds something else than named tensors")
    return {name: part.clone().contiguous() for name, part in stored.items()}
