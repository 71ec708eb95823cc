"""Adapters of PEFT, merged into a model or around it, and checkpoints quantized in ways that are not read."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from os.path import expanduser
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specframe.components.targets.source import first_line, quiet
from specframe.kernel.errors import CompositionError, InputError, WeightsError

PACKAGES = {"bitsandbytes": "bitsandbytes", "gptq": "gptqmodel", "awq": "gptqmodel"}
"""The package that transformers needs for a way of quantizing, by the name that a config has for it."""


def unread(config: Any) -> str | None:
    """Returns why the weights of a quantized checkpoint are not read, or None where they are.

    A way whose package is installed is tried; the check of a target refuses one whose rows depend on each other.
    """
    found = getattr(config, "quantization_config", None)
    how = found.get("quant_method") if isinstance(found, dict) else getattr(found, "quant_method", None)
    name = str(getattr(how, "value", how))
    if how is None or name not in PACKAGES or find_spec(PACKAGES[name]) is not None:
        return None
    return (
        f"its weights are quantized by {name}, which needs the package {PACKAGES[name]}; or take the plain checkpoint, "
        "with `quantize: int4`, or a GGUF file"
    )


def require_adapter(adapter: str) -> None:
    """Raises InputError unless a folder holds an adapter, and the package that reads it is installed."""
    folder = Path(expanduser(adapter))
    if not (folder / "adapter_config.json").is_file():
        raise InputError(
            f"target.adapter: {adapter} holds no adapter_config.json, so it is no folder of a PEFT adapter"
        )
    if find_spec("peft") is None:
        raise InputError(f"target.adapter: {adapter} needs the package peft to be read: pip install peft")


def merge(model: nn.Module, adapter: str) -> nn.Module:
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
    """The model of transformers in a wrapper: torch.compile's, a parallel one's, or PEFT's, whose layers stay in it.

    A compiled forward pass is left out: the target's option `compile` compiles the one over trees. Raises
    CompositionError for adapters that work outside of the layers, which would be lost.
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
