"""The modules of a model that native passes compute, without transformers'; and packing of matrices into blocks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets import architectures
from specframe.components.targets.forward import native as native_passes
from specframe.components.targets.source import GGUFModel, read_gguf
from specframe.kernel.errors import CompositionError, InputError, WeightsError
from specframe.native.blocks import BLOCK, Bits, PackedBlocks, round_to_blocks
from specframe.native.build import load_native
from specframe.native.linear import PackedLinear, QuantizedLinear
from specframe.neural.llama import Decoder, RMSNorm, is_llama
from specframe.neural.quantize import BITS, Quantization
from specframe.neural.weights.locate import WEIGHTS, FileTensors, check_shards, weight_files
from specframe.neural.weights.rounded import read_rounded

HEAD_BITS: Bits = 8
"""Bits of the LM head, whatever the layers have: llama.cpp's habit, for its rounding reaches every logit directly."""


class LlamaModel(nn.Module):
    """A causal language model of Llama's family, by transformers' names: its modules, without a forward pass.

    Native passes need no more. `whole`, which everything else runs, is made when it is first asked for.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.generation_config: Any = None
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @classmethod
    def read(cls, config: Any, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> LlamaModel | None:
        """The model of these tensors in a dtype; None unless they are a model's of this config, all and in its shapes.

        Matrices of the layers stay where they are, if they can, until they are packed; others are copied.
        """
        with torch.device("meta"):
            model = cls(config)
        model.tie_weights()
        shapes = {name: weight.shape for name, weight in model.named_parameters()}
        if (config.tie_word_embeddings and "lm_head.weight" in tensors) or not shapes.keys() <= tensors.keys():
            return None
        found = {name: tensors[name] for name in shapes}
        if any(tensor.shape != shapes[name] or not tensor.is_floating_point() for name, tensor in found.items()):
            return None
        stay = {name for name, tensor in found.items() if tensor.dim() > 1 and ".layers." in name}
        cast = {name: tensor.to(dtype, copy=name not in stay) for name, tensor in found.items()}
        model.load_state_dict(cast, strict=False, assign=True)
        model.tie_weights()
        return model.requires_grad_(False).eval()

    def tie_weights(self) -> None:
        """Makes the embedding the weight of the LM head, too, where the config ties them."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its features."""
        return self.model.embed_tokens.weight.dtype

    def get_decoder(self) -> Decoder:
        """The embedding, the layers and the final norm."""
        return self.model

    def get_input_embeddings(self) -> nn.Module:
        """The embedding."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        """The LM head."""
        return self.lm_head

    def forget(self) -> None:
        """Drops transformers' model, and what was unpacked for it."""
        vars(self).pop("whole", None)
        for module in self.modules():
            if isinstance(module, PackedLinear):
                module.drop_whole()

    @cached_property
    def whole(self) -> Any:
        """transformers' model around these modules."""
        found = architectures.find_classes(type(self.config))
        assert found is not None, "transformers has a model for each of these configs"
        with torch.device("meta"):
            model = found[0](self.config)
        for name, module in self.named_modules():
            parent, _, attribute = name.rpartition(".")
            if isinstance(module, RMSNorm):
                model.get_submodule(name).weight = module.weight
            elif isinstance(module, nn.Linear | nn.Embedding | QuantizedLinear):
                setattr(model.get_submodule(parent), attribute, module)
        model.model.rotary_emb = type(model.model.rotary_emb)(self.config)
        model.generation_config = self.generation_config or model.generation_config
        return model.eval()


def read(place: Path, config: Any, file: GGUFModel | None, dtype: str) -> LlamaModel | None:
    """The model of a folder or GGUF file, for native passes, in a dtype; `auto` is the config's.

    None where it needs more than they have, or where its files are not those of a model: transformers knows why.
    """
    wanted = getattr(config, "dtype", None) if dtype == "auto" else getattr(torch, dtype)
    named = getattr(config, "transformers_weights", None) or getattr(config, "quantization_config", None)
    if not is_llama(config) or named or wanted not in (torch.bfloat16, torch.float32):
        return None
    with torch.device("meta"):
        decoder = Decoder(config)
    if native_passes.unfit_floats(config, decoder, decoder.layers) is not None:
        return None
    try:
        tensors = _tensors(place, config, file, wanted)
        model = None if tensors is None else LlamaModel.read(config, tensors, wanted)
    except WeightsError:
        return None
    if model is not None:
        config.dtype = wanted
        model.generation_config = _generation_config(place, config)
    return model


def _tensors(place: Path, config: Any, file: GGUFModel | None, dtype: torch.dtype) -> Mapping[str, Tensor] | None:
    if file is None:
        check_shards(place)
        return (read_rounded(place / WEIGHTS) or FileTensors(place)) if weight_files(place) else None
    file.require_template()
    if (stored := file.stored(config)) is None:
        return None
    stored.require_fit(LlamaModel)
    return dict(stored.weights(dtype))


def _generation_config(place: Path, config: Any) -> Any:
    """The generation config that transformers has for a model from here."""
    from transformers import GenerationConfig

    if not (place / "generation_config.json").is_file():
        return GenerationConfig.from_model_config(config)
    return GenerationConfig.from_pretrained(place)


def quantize(
    model: Any, quantization: Quantization, file: Path | None = None, *, group: int = BLOCK, steps: int = 15
) -> None:
    """Replaces the model's linear layers and its LM head, in place; embedding and norms stay as they are.

    Blocks of the GGUF file that the model was read from are taken over where they have as many bits; other weights are
    rounded, those of the layers coarser where `group` or `steps` ask for it (see `round_to_blocks`). Where native code
    cannot be compiled, the weights are rounded and unpacked again, with a warning.
    Raises CompositionError for a model or device that this cannot be done for.
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
    """The linear layers to replace, by name. Raises CompositionError for layers that cannot be replaced."""
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
        held = ", ".join(sorted(others)) or "no list"
        raise CompositionError(
            f"{config.model_type} cannot be quantized: its layers have weights in {held}, "
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
