"""Conversion from GGUF to safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open

from specframe.components.targets.loading import load
from specframe.components.targets.source import quiet
from specframe.components.targets.tokenizer import TokenizerSource
from specframe.kernel.errors import WeightsError, first_line
from specframe.neural.weights.checkpoint import share


def convert_gguf(
    file: str | Path, folder: str | Path, *, dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
) -> None:
    """Writes the model and tokenizer of a GGUF file to a folder in transformers' format, unpacked to a dtype.

    The written file is read back and compared. Raises InputError for a file that transformers cannot read, WeightsError
    if the folder cannot be written or reads back differently.
    """
    folder = Path(folder)
    model: Any = load(str(file), dtype=dtype, device="cpu", revision=None, attention=None)
    tokenizer = TokenizerSource(Path(file)).get()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with quiet():
            model.save_pretrained(folder)
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
        share(folder)
        _compare(model.state_dict(), folder)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{folder} cannot be written: {first_line(error)}") from error


def _compare(wanted: dict[str, torch.Tensor], folder: Path) -> None:
    """Raises WeightsError unless the folder has exactly these tensors; tied ones are stored once."""
    known = {tensor.data_ptr() for tensor in wanted.values()}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118  (it is no mapping)
                if not torch.equal(stored.get_tensor(name), wanted[name]):
                    raise WeightsError(f"{path} does not hold what was written: {name} differs; is the disk sound?")
                known.discard(wanted[name].data_ptr())
    if known:
        raise WeightsError(f"{folder} lacks {len(known)} tensors of the model")
