"""Packing of a model's matrices into blocks of 4 or 8 bits."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specframe.components.targets import architectures
from specframe.components.targets.source import read_gguf
from specframe.kernel.errors import CompositionError, InputError
from specframe.native.blocks import BLOCK, Bits, PackedBlocks, round_to_blocks
from specframe.native.build import load_native
from specframe.native.linear import QuantizedLinear
from specframe.neural.quantize import BITS, Quantization

HEAD_BITS: Bits = 8
"""Bits of the LM head regardless of the layers', as in llama.cpp: its rounding affects every logit directly."""


def quantize(
    model: Any, quantization: Quantization, file: Path | None = None, *, group: int = BLOCK, steps: int = 15
) -> None:
    """Replaces the model's linear layers and LM head in place; embedding and norms are unchanged.

    Blocks of the GGUF file that the model was read from are reused if they have the requested bits. Other weights are
    rounded; `group` and `steps` make the layers' rounding coarser (see `round_to_blocks`). Without the native library,
    the weights are rounded and unpacked again, with a warning. Raises CompositionError for a model or device that does
    not support this.
    """
    config = model.config.get_text_config()
    chosen = _matrices(model, config, quantization)
    head = model.get_output_embeddings()
    if odd := [name for name, linear in chosen.items() if linear is not head and linear.in_features % group]:
        raise CompositionError(f"groups of {group} do not divide the {chosen[odd[0]].in_features} inputs of {odd[0]}")
    try:
        load_native()
        compiled = True
    except InputError as error:
        compiled = False
        logging.getLogger(__name__).warning("%s: the %s weights are unpacked, which is no faster", error, quantization)
    stored = None if file is None else read_gguf(file).stored(config)
    for name, linear in chosen.items():
        bits = HEAD_BITS if linear is head else BITS[quantization]
        found = None if stored is None else stored.find(name, linear.weight, bits)
        coarse = {} if linear is head else {"group": group, "steps": steps}
        blocks = round_to_blocks(linear.weight, bits, **coarse) if found is None else PackedBlocks(*found)
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, _layer(blocks, linear, compiled))


def _layer(blocks: PackedBlocks, linear: nn.Linear, compiled: bool) -> nn.Module:
    if compiled:
        return QuantizedLinear(blocks, linear.bias)
    unpacked = nn.Linear(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
    unpacked.weight = nn.Parameter(blocks.values().to(linear.weight.dtype), requires_grad=False)
    unpacked.bias = linear.bias
    return unpacked


def _matrices(model: Any, config: Any, quantization: Quantization) -> dict[str, nn.Linear]:
    """Returns the linear layers to replace, by name. Raises CompositionError for layers that cannot be replaced."""
    device = model.get_input_embeddings().weight.device
    if device.type != "cpu":
        raise CompositionError(
            f"quantize: {quantization} computes on a CPU, and this target is on {device}; "
            "remove it and take dtype: bfloat16, or set device: cpu"
        )
    found = architectures.layers(model, config)
    inner = list(found[1].modules()) if found is not None else []
    others = {
        type(module).__name__
        for module in inner
        if not isinstance(module, nn.Linear) and any(p.dim() > 1 for p in module.parameters(recurse=False))
    }
    if others or not inner:
        kinds = ", ".join(sorted(others)) or "no list"
        raise CompositionError(
            f"{config.model_type} cannot be quantized: its layers have weights in {kinds}, "
            "and only linear layers can be replaced"
        )
    wanted = {*(module for module in inner if isinstance(module, nn.Linear)), model.get_output_embeddings()}
    chosen = {
        name: module for name, module in model.named_modules() if module in wanted and isinstance(module, nn.Linear)
    }
    odd = next((name for name, linear in chosen.items() if linear.in_features % BLOCK), None)
    if odd is not None:
        raise CompositionError(
            f"{config.model_type} cannot be quantized: {odd} has {chosen[odd].in_features} inputs, "
            f"which blocks of {BLOCK} do not divide"
        )
    if any(linear.weight.dtype == torch.float64 for linear in chosen.values()):
        raise CompositionError(f"quantize: {quantization} computes in float32; dtype: float64 is more than it can keep")
    return chosen
