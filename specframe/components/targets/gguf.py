"""GGUF files: what transformers can read of them becomes a target, and safetensors."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from specframe.components.targets.source import Source, first_line, quiet
from specframe.kernel.errors import InputError

TOKENIZER_KEY = "tokenizer.ggml.model"


def read_config(model: str, source: Source) -> Any:
    """The transformers config of a GGUF file.

    Raises InputError for what is no whole GGUF file, for an architecture that transformers cannot read, and where the
    package gguf is missing.
    """
    from transformers import AutoConfig

    require_gguf(model)
    try:
        with quiet():
            return AutoConfig.from_pretrained(source.name, **source.options, trust_remote_code=False)
    except Exception as error:  # whatever a damaged header leads to
        hint = "" if "architecture" in str(error) else "; is the file whole?"
        raise InputError(f"{model} cannot be read as GGUF: {first_line(error)}{hint}") from error


def require_gguf(model: str) -> None:
    """Raises InputError where the package that reads GGUF files is not installed."""
    if find_spec("gguf") is None:
        raise InputError(f"{model} needs the package gguf to be read: pip install 'specframe[gguf]'")


def has_tokenizer(file: Path) -> bool:
    """Whether a GGUF file holds a tokenizer. Raises InputError for what is no whole GGUF file."""
    require_gguf(str(file))
    from gguf import GGUFReader

    try:
        return TOKENIZER_KEY in GGUFReader(file).fields
    except Exception as error:
        raise InputError(f"{file} cannot be read as GGUF: {first_line(error)}; is the file whole?") from error


def make_plain(model: Any) -> nn.Module:
    """The model itself, no longer marked as quantized: its weights were unpacked when it was loaded."""
    for mark in ("hf_quantizer", "quantization_method", "is_quantized"):
        vars(model).pop(mark, None)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    plain: nn.Module = model
    return plain
