"""A drafter in the form that another program reads: the folder, and what that program will find there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from specframe.kernel.errors import WeightsError
from specframe.neural.weights.checkpoint import CONFIG, WEIGHTS, reason, replacing


@dataclass(frozen=True)
class Export:
    """A checkpoint to be written."""

    config: Mapping[str, Any]
    """Its config.json."""
    tensors: Mapping[str, Tensor]
    """Its tensors, as they are stored."""
    checklist: tuple[tuple[str, str], ...]
    """What the program that reads it will take it for: a word, and its meaning."""
    command: str = ""
    """How that program is started on it; FOLDER stands for the folder."""
    file: str = WEIGHTS
    """The name of the tensors' file."""

    def write(self, folder: Path) -> None:
        """Writes both files, each whole or not at all. Raises WeightsError when the folder cannot be written."""
        text = json.dumps(dict(self.config), indent=2, sort_keys=True) + "\n"
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.tensors.items()}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with replacing(folder / self.file) as weights, replacing(folder / CONFIG) as words:
                save_file(tensors, weights, metadata={"format": "pt"})
                words.write_text(text, encoding="utf-8")
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"cannot write the checkpoint to {folder}: {reason(error)}") from error


@runtime_checkable
class Exportable(Protocol):
    """A drafter that other programs have a form for."""

    forms: tuple[str, ...]
    """The names of these forms, such as vllm."""

    def export(self, form: str) -> Export:
        """The drafter, bound to its target, in one of the forms.

        Raises WeightsError, with the reason, for a form that has no place for something the drafter needs.
        """
        ...
