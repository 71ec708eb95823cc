"""A checkpoint's weights in parts, as large ones are published."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"


def split(folder: Path, *, count: int = 2, index: bool = True, pickled: bool = False) -> list[Path]:
    """Writes the folder's model.safetensors as parts, with an index or without; the whole file is removed."""
    tensors = load_file(folder / WEIGHTS)
    stem, suffix = ("pytorch_model", ".bin") if pickled else ("model", ".safetensors")
    paths = [folder / f"{stem}-{number:05}-of-{count:05}{suffix}" for number in range(1, count + 1)]
    places = {name: paths[place % count] for place, name in enumerate(sorted(tensors))}
    for path in paths:
        part = {name: tensors[name].contiguous() for name, place in places.items() if place == path}
        if pickled:
            torch.save(part, path)
        else:
            save_file(part, path, metadata={"format": "pt"})
    if index:
        weight_map = {name: path.name for name, path in places.items()}
        (folder / f"{stem}{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / WEIGHTS).unlink()
    return paths
