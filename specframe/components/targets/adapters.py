"""Adapters of PEFT: folders of weights that are merged into a model's."""

from __future__ import annotations

import json
from importlib.util import find_spec
from os.path import expanduser
from pathlib import Path
from typing import Any

from torch import nn

from specframe.components.targets.source import quiet
from specframe.kernel.errors import InputError, WeightsError, first_line

MERGE = (
    "name it in `target.adapter`, next to its model, give `compose(target=...)` the PeftModel, or merge it once into a "
    "model's folder "
    "(PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(folder))"
)


def base_of(adapter: Path) -> str:
    """Returns a clause with the model that an adapter's config names, or nothing."""
    try:
        name = json.loads(adapter.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        return ""
    return f" for the model {name!r}" if isinstance(name, str) and name else ""


def require_adapter(adapter: str) -> None:
    """Raises InputError unless a folder holds an adapter, and the package that reads it is installed."""
    folder = Path(expanduser(adapter))
    if not (folder / "adapter_config.json").is_file():
        raise InputError(
            f"target.adapter: {adapter} holds no adapter_config.json, so it is no folder of a PEFT adapter"
        )
    if find_spec("peft") is None:
        raise InputError(f'target.adapter: {adapter} needs the package peft: pip install "specframe[adapters]"')


def merge_adapter(model: nn.Module, adapter: str) -> nn.Module:
    """The model with an adapter merged into its weights. Raises WeightsError for one that does not fit."""
    from peft import PeftModel

    whole: Any = model
    try:
        with quiet():
            merged: nn.Module = PeftModel.from_pretrained(whole, Path(expanduser(adapter))).merge_and_unload()
    except Exception as error:  # peft and safetensors raise many kinds
        raise WeightsError(f"the adapter {adapter} does not fit the model: {first_line(error)}") from error
    return merged
