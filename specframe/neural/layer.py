"""Decoder layers of the target's own kind, the body of most trainable drafters."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specframe.kernel.errors import CompositionError
from specframe.kernel.layers import LayerChoice
from specframe.native.bounds import odd_outputs, unlike
from specframe.native.decoder import PackedLayers
from specframe.native.linear import QuantizedLinear
from specframe.native.visibility import Mask
from specframe.neural.cache import SlotCache, cache_name
from specframe.neural.llama import Decoder, along_texts, is_llama, visible_steps

if TYPE_CHECKING:
    from transformers import Cache, PretrainedConfig


LAYER_FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "max_position_embeddings",
    "vocab_size",
)
"""Fields of the target's config that a drafter's layers of any kind copy."""


def layer_config(target: PretrainedConfig, kind: str, layers: int = 1) -> PretrainedConfig:
    """The config of a drafter's layers, of a model type of transformers, with the target's sizes and rotary embedding.

    Without a number of KV heads the target has one for each query head; without an MLP width it is the `ffn_dim` of
    older architectures, or four times the hidden size.
    """
    shape = {name: value for name in LAYER_FIELDS if (value := getattr(target, name, None)) is not None}
    shape.setdefault("num_key_value_heads", target.num_attention_heads)
    shape.setdefault("intermediate_size", getattr(target, "ffn_dim", None) or 4 * target.hidden_size)
    rope = dict(getattr(target, "rope_parameters", None) or {})
    rope = dict(rope.get("full_attention") or rope)  # some targets have one for every kind of attention
    if rope.get("rope_theta"):
        shape["rope_parameters"] = rope
    return make_config(kind, num_hidden_layers=layers, tie_word_embeddings=False, **shape)


def make_config(kind: str, **values: Any) -> PretrainedConfig:
    """transformers' config of a model type, as `AutoConfig.for_model` makes it.

    For Llama and Qwen2 it is a class of `specframe.neural.llama_config`, without a slow import: `complete_config` gives
    it transformers' class. Raises ValueError or TypeError for values that transformers refuses.
    """
    if (light := light_config(kind)) is not None:
        with suppress(Exception):  # transformers reports the error below
            return light(**copy.deepcopy(values))
    from transformers import AutoConfig

    config: PretrainedConfig = AutoConfig.for_model(kind, **values)
    return config


@cache
def light_config(kind: object) -> type[PretrainedConfig] | None:
    """The fast-importing config class of a model type, or None."""
    try:
        from specframe.neural.llama_config import CONFIGS
    except ImportError:
        return None
    return CONFIGS.get(str(kind))


def complete_config(config: Any) -> Any:
    """Gives a config transformers' own class, by which it finds models; the fields stay."""
    if type(config) is light_config(getattr(config, "model_type", None)):
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        config.__class__ = CONFIG_MAPPING[config.model_type]
    return config


def rotation(rotary: Any, like: Tensor, positions: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions [B, T] by transformers' rotary embedding, [B, T, d] each, on `like`'s device."""
    if rotary.inv_freq.device != like.device:
        rotary.to(like.device)
    cos, sin = rotary(like, positions, **options)
    return cos, sin


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies the rotary embedding of their positions to heads [.., d]."""
    one, two = x.chunk(2, -1)
    return x * cos + torch.cat([-two, one], -1) * sin


class DecoderLayer(nn.Module):
    """One or several freshly initialised decoder layers of the target's kind, with an explicit interface.

    Built from the target's config by transformers' own classes, or by those of `specframe.neural.llama` with
    bit-identical results, so attention biases, query norms, rope scaling and activations are the target's. Works for
    every architecture whose bare model has `layers` and `rotary_emb` (Llama, Mistral, Qwen2, Qwen3, Granite, OLMo 2,
    Phi-3, ...); others raise CompositionError. The layer itself is `layer`, in transformers' parameter names: EAGLE,
    for example, replaces `layer.input_layernorm` by an identity. Layers after the first are `upper`, a module each.

    The rotary frequencies are not part of the module's state: casts to bfloat16 and strict loads do not touch them, and
    they follow the input's device.
    """

    def __init__(self, config: PretrainedConfig, layers: int = 1) -> None:
        super().__init__()
        model = _bare_model(config)
        self.config = model.config
        self.layer: nn.Module = model.layers[0]
        self._rotary = (model.rotary_emb,)  # in a tuple, so that nn.Module does not cast its buffers
        self._rotary_options = _rotary_options(model)
        self._cache_name = cache_name(self.layer)
        self._additive = model.config._attn_implementation == "eager"
        self.packed: PackedLayers | None = None
        """All layers packed for native code, which then computes them during decoding; None: not packed."""
        self.place = 0
        """Index in the cache of the first layer's keys and values; those of further layers follow."""
        self.upper = nn.ModuleList()
        self.extend(config, layers)

    @property
    def count(self) -> int:
        """Number of layers."""
        return 1 + len(self.upper)

    @property
    def layers(self) -> list[nn.Module]:
        """The layers in order, in transformers' parameter names."""
        return [self.layer, *(part.get_submodule("layer") for part in self.upper)]

    def extend(self, config: PretrainedConfig, layers: int) -> None:
        """Appends new layers, up to a total of `layers`; each has its own index in the cache."""
        for place in range(self.count, layers):
            parts: Any = DecoderLayer(config)
            parts.place = parts.layer.self_attn.layer_idx = place
            self.upper.append(parts)

    def pack(self) -> None:
        """Makes native code compute the layers during decoding, if their matrices are quantized."""
        if self.place:  # the first layer packs all
            return
        layers, rotary = self.layers, self._rotary[0]
        matrices = [module for module in self.modules() if isinstance(module, QuantizedLinear)]
        if matrices and unlike(self.config, rotary, layers) is None and odd_outputs(matrices) is None:
            every: Any = [self, *self.upper]
            packed = PackedLayers(self.config, rotary, layers)
            for part in every:
                part.packed = packed

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: Cache | None = None,
        before: Tensor | None = None,
    ) -> Tensor:
        """The last layer's output, [B, T, D].

        Args:
            x: [B, T, D].
            positions: [B, T] int64, for the rotary embedding only.
            mask: [B or 1, 1, T, S] bool, True where query t may see key s; S is T without a cache and
                the cache's width with one. None: plain causal; over a cache of earlier calls with T entries each,
                causal among the first call's, plus the same entry of every later call (`llama.attend`).
            cache: keys and values of earlier calls (a `SlotCache` of `count` layers), used as the target uses
                its own, without gradients: it decides where this call's T entries are written and
                which S are read.
            before: the mask of all layers but the last one; None: the same mask.
        """
        for layer, own in self.masked(mask, before):
            x = layer.one(x, positions, own, cache)
        return x

    def masked(self, mask: Tensor | None, before: Tensor | None) -> list[tuple[DecoderLayer, Tensor | None]]:
        """The layers in order, each with its mask."""
        every: Any = [self, *self.upper]
        return [*((layer, mask if before is None else before) for layer in every[:-1]), (every[-1], mask)]

    def one(self, x: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        """The output of the first layer alone."""
        if self.packed and isinstance(cache, SlotCache) and mask is not None and not torch.is_grad_enabled():
            return self._compute(self.packed, x, positions, mask, cache)
        products = x.is_cpu and torch.is_grad_enabled() and self.config._attn_implementation == "sdpa"
        if mask is None and not products:
            steps = 1 if cache is None else 1 + cache.get_seq_length(self.place) // x.shape[1]
            if self._additive or steps > 1:  # without a mask these hide nothing
                mask = visible_steps(x.shape[1], steps, x.device)
        if self._additive and mask is not None:
            mask = torch.zeros_like(mask, dtype=x.dtype).masked_fill_(~mask, torch.finfo(x.dtype).min)
        with along_texts(self.config) if products else nullcontext():
            out = self.layer(
                x,
                attention_mask=mask,
                position_ids=positions,
                use_cache=cache is not None,
                position_embeddings=rotation(self._rotary[0], x, positions, **self._rotary_options),
                **{self._cache_name: cache},
            )
        states: Tensor = out[0] if isinstance(out, tuple) else out
        return states

    def _compute(self, packed: PackedLayers, x: Tensor, positions: Tensor, mask: Tensor, cache: SlotCache) -> Tensor:
        """Computes the layer natively."""
        batch, count, _ = x.shape
        places = cache.slots
        if isinstance(places, int):
            places = torch.arange(places, places + count).expand(batch, -1)
        split = x.shape[-1] - packed.shape.width  # width before the state in a layer of twice the input
        embeddings, state = (x[..., :split], x[..., split:]) if split else (None, x)
        hidden = state.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        visibility = Mask(mask[:, 0].expand(batch, -1, -1), places)
        own = tuple(place == self.place for place in range(packed.shape.layers))
        chosen = LayerChoice(own, own)
        packed.run(hidden, positions, visibility, cache, cache.row, chosen=chosen, embeddings=embeddings)
        return hidden.to(x.dtype)


def _bare_model(config: PretrainedConfig) -> Any:
    """A one-layer model without a vocabulary, of the config's kind, or of Llama's if that has recurrent layers."""
    small = copy.deepcopy(config) if all(map(_attends, _layer_types(config))) else _of_llama(config)
    small.num_hidden_layers = 1
    small.vocab_size = 1  # the embedding is the target's; do not build a second one
    small.pad_token_id = small.bos_token_id = small.eos_token_id = None
    if getattr(small, "layer_types", None):
        small.layer_types = ["full_attention"]  # the mask alone decides visibility
    if is_llama(small):
        small.dtype, small._attn_implementation_internal = torch.float32, "sdpa"
        return Decoder.initialised(small)
    from transformers import AutoModel  # a slow import

    small._attn_implementation_internal = None  # let transformers choose: sdpa wherever it is supported
    build: Any = AutoModel.from_config
    model = build(complete_config(small), dtype=torch.float32)
    if not hasattr(model, "layers") or not hasattr(getattr(model, "rotary_emb", None), "inv_freq"):
        raise CompositionError(
            f"a drafter layer cannot be built for the architecture {config.model_type!r}: its model has no "
            "separate decoder layers with one rotary embedding; use a target such as Llama or Qwen3"
        )
    return model


def _layer_types(config: PretrainedConfig) -> Sequence[str]:
    return getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()


def _attends(kind: str) -> bool:
    return "attention" in kind and kind != "linear_attention"


def _of_llama(config: Any) -> PretrainedConfig:
    """A Llama config of the same sizes: a draft needs keys and values, which can be dropped with it."""
    from transformers import LlamaConfig

    size = config.hidden_size
    heads = getattr(config, "num_attention_heads", None) or max(1, size // 64)
    rope = getattr(config, "rope_parameters", None) or {}
    return LlamaConfig(
        hidden_size=size,
        intermediate_size=getattr(config, "intermediate_size", None) or 4 * size,
        num_attention_heads=heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or size // heads,
        max_position_embeddings=getattr(config, "max_position_embeddings", None) or 2048,
        rms_norm_eps=getattr(config, "rms_norm_eps", None) or 1e-5,
        initializer_range=getattr(config, "initializer_range", 0.02),
        rope_parameters={"rope_type": "default", "rope_theta": rope.get("rope_theta", 10000.0)},
    )


def _rotary_options(model: Any) -> dict[str, str]:
    """Further arguments that the rotary embedding needs."""
    if "layer_type" in inspect.signature(model.rotary_emb.forward).parameters:
        return {"layer_type": "full_attention"}
    return {}
