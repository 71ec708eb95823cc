"""Wrapped models: merges PEFT adapters, and unwraps torch.compile and parallel wrappers."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from os.path import expanduser
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specframe.components.targets.source import quiet
from specframe.kernel.errors import CompositionError, InputError, WeightsError, first_line


def base_of(adapter: Path) -> str:
    """Returns the name of an adapter's base model, as a clause; empty if its config names none."""
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


MERGE = (
    "name it in `target.adapter`, next to its model, give `compose(target=...)` the PeftModel, or merge it once into a "
    "model's folder "
    "(PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(folder))"
)


def unwrap(model: nn.Module) -> nn.Module:
    """The transformers model in a wrapper of torch.compile, parallel training or PEFT, whose layers stay in place.

    A compiled forward pass is dropped: the target's option `compile` compiles the one over trees. Raises
    CompositionError for adapters outside of the layers, which would be lost.
    """
    if isinstance(model, torch._dynamo.OptimizedModule):
        return unwrap(model._orig_mod)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrap(model.module)
    peft: Any = sys.modules.get("peft")  # a model of PEFT's was made by it
    if peft is None or not isinstance(model, peft.PeftModel | peft.PeftMixedModel):
        return model
    wrapped: Any = model
    configs = [] if isinstance(model, peft.PeftMixedModel) else [wrapped.active_peft_config]
    if lost := [str(config.peft_type.value).lower() for config in configs if config.is_prompt_learning]:
        raise CompositionError(
            f"this model cannot be a target: its adapter is of the kind {lost[0]}, which puts tokens of its own before "
            "every text, and a target reads texts alone; take one whose adapter is in its layers, such as LoRA"
        )
    return unwrap(wrapped.get_base_model() if configs else wrapped.base_model.model)
