"""One decoder layer of the target's own kind, the body of most trainable drafters."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specframe.kernel.errors import CompositionError
from specframe.native.bounds import odd_outputs, unlike
from specframe.native.decoder import PackedLayers
from specframe.native.linear import QuantizedLinear
from specframe.native.sight import Mask
from specframe.neural.cache import SlotCache, cache_name

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
"""Fields of the target's config that a drafter's layers take, whatever kind they are of."""


def layer_config(target: PretrainedConfig, kind: str, layers: int = 1) -> PretrainedConfig:
    """The config for a drafter's layers (a model type of transformers); sizes and rotary embedding as the target's.

    A target that names no number of key heads has one for each query head, and one that names no width of its MLP has
    the older architectures' `ffn_dim`, or four times its own.
    """
    from transformers import AutoConfig  # a slow import: commands that load no model do without

    shape = {name: value for name in LAYER_FIELDS if (value := getattr(target, name, None)) is not None}
    shape.setdefault("num_key_value_heads", target.num_attention_heads)
    shape.setdefault("intermediate_size", getattr(target, "ffn_dim", None) or 4 * target.hidden_size)
    rope = dict(getattr(target, "rope_parameters", None) or {})
    rope = dict(rope.get("full_attention") or rope)  # some targets have one for every kind of attention
    if rope.get("rope_theta"):
        shape["rope_parameters"] = rope
    config: PretrainedConfig = AutoConfig.for_model(kind, num_hidden_layers=layers, tie_word_embeddings=False, **shape)
    return config


def rotation(rotary: Any, like: Tensor, positions: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The cosines and sines of positions [B, T] by transformers' rotary embedding, [B, T, d] each, where `like` is."""
    if rotary.inv_freq.device != like.device:
        rotary.to(like.device)
    cos, sin = rotary(like, positions, **options)
    return cos, sin


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads [.., d] with the rotary embedding of their positions."""
    one, two = x.chunk(2, -1)
    return x * cos + torch.cat([-two, one], -1) * sin


ALONG_TEXTS = "specframe_along_texts"
"""The name under which transformers' layers find `attend`."""


class DecoderLayer(nn.Module):
    """A freshly initialised decoder layer, identical in kind to the target's, with an explicit interface.

    Built from the target's config by transformers' own classes, so attention biases, query norms, rope
    scaling and activations are the target's. Works for every architecture whose bare model has `layers`
    and `rotary_emb` (Llama, Mistral, Qwen2, Qwen3, Granite, OLMo 2, Phi-3, ...); others raise
    CompositionError. The layer itself is `layer`, in transformers' parameter names: EAGLE, for one,
    puts an identity in the place of `layer.input_layernorm`.

    The rotary frequencies are not part of the module's state: casts to bfloat16 and strict loads do not touch them, and
    they follow the input's device.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        model = _bare_model(config)
        self.config = model.config
        self.layer: nn.Module = model.layers[0]
        self._rotary = (model.rotary_emb,)  # in a tuple, so that nn.Module does not cast its buffers
        self._rotary_options = _rotary_options(model)
        self._cache_name = cache_name(self.layer)
        self._additive = model.config._attn_implementation == "eager"
        self.packed: PackedLayers | None = None
        """The layer as native code takes it, which then computes it while it decodes."""

    def pack(self) -> None:
        """Lets the native passes compute the layer where it decodes, if they can; its matrices are quantized."""
        layers, rotary = [self.layer], self._rotary[0]
        matrices = [module for module in self.layer.modules() if isinstance(module, QuantizedLinear)]
        if matrices and unlike(self.config, rotary, layers) is None and odd_outputs(matrices) is None:
            self.packed = PackedLayers(self.config, rotary, layers)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache | None = None) -> Tensor:
        """The layer's output, [B, T, D].

        Args:
            x: [B, T, D].
            positions: [B, T] int64, for the rotary embedding only.
            mask: [B or 1, 1, T, S] bool, True where query t may see key s; S is T without a cache and
                the cache's width with one. None: plain causal; over a cache of earlier calls of as many entries,
                causal among the first call's, with the same entry of every later one (`attention.attend`).
            cache: keys and values of earlier calls (`SlotCache` of one layer), used as the target uses
                its own, without gradients: it decides where this call's T entries are written and
                which S are read.
        """
        if self.packed and isinstance(cache, SlotCache) and mask is not None and not torch.is_grad_enabled():
            return self._compute(self.packed, x, positions, mask, cache)
        products = x.is_cpu and torch.is_grad_enabled() and self.config._attn_implementation == "sdpa"
        if mask is None and not products:
            steps = 1 if cache is None else 1 + cache.get_seq_length() // x.shape[1]
            if self._additive or steps > 1:  # without a mask they hide nothing
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
        sight = Mask(mask[:, 0].expand(batch, -1, -1), places)
        packed.run(hidden, positions, sight, cache, cache.row, embeddings=embeddings)
        return hidden.to(x.dtype)


def _bare_model(config: PretrainedConfig) -> Any:
    """A model of one layer with no vocabulary, of the config's kind; of Llama's where that has recurrent layers."""
    from transformers import AutoModel

    small = copy.deepcopy(config) if all(map(_attends, _layer_types(config))) else _of_llama(config)
    small.num_hidden_layers = 1
    small.vocab_size = 1  # the embedding is the target's business; don't build a second one
    small.pad_token_id = small.bos_token_id = small.eos_token_id = None
    if getattr(small, "layer_types", None):
        small.layer_types = ["full_attention"]  # the mask alone decides visibility
    small._attn_implementation_internal = None  # let transformers choose: sdpa wherever it is supported
    build: Any = AutoModel.from_config
    model = build(small, dtype=torch.float32)
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
    """A Llama's config of the same sizes: a drafter's draft needs keys and values, which are dropped with it."""
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
    """The further arguments that the rotary embedding wants."""
    if "layer_type" in inspect.signature(model.rotary_emb.forward).parameters:
        return {"layer_type": "full_attention"}
    return {}


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return value of transformers' attention functions: the mixed values, [B, n, heads, d], and no weights.

    On a CPU PyTorch's attention takes no bfloat16 instructions in its backward pass. Over a few hundred tokens,
    products of whole matrices take half to a quarter of the time.

    Without a mask, entries attend causally to the first n keys, and entry i to key i of every further n: those are of
    later steps of a training-time test (EAGLE-3), the last of them its own.

    Args:
        module: the attention layer; nothing of it is read.
        query: [B, heads, n, d].
        key: [B, key heads, S, d]; S is a multiple of n without a mask.
        value: as `key`.
        attention_mask: [B or 1, 1, n, S] bool, True where an entry sees a key; None: as above.
        scaling: of the products; None: 1 / sqrt(d).
        dropout: of the weights, 0 in every layer that a drafter has.
    """
    n, size = query.shape[2], query.shape[3]
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    query = query * (size**-0.5 if scaling is None else scaling)
    if attention_mask is not None:
        scores = (query @ key.transpose(2, 3)).masked_fill(~attention_mask, -torch.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None
    causal = torch.ones(n, n, dtype=torch.bool, device=query.device).tril()
    scores = (query @ key[:, :, :n].transpose(2, 3)).masked_fill(~causal, -torch.inf)
    if key.shape[2] == n:
        return (scores.softmax(-1) @ value).transpose(1, 2).contiguous(), None
    own_keys, own_values = (part[:, :, n:].unflatten(2, (-1, n)) for part in (key, value))  # [B, heads, steps, n, d]
    own = (query[:, :, None] * own_keys).sum(-1).transpose(2, 3)  # [B, heads, n, steps]
    weights = torch.cat([scores, own], -1).softmax(-1)
    mixed = weights[..., :n] @ value[:, :, :n]
    mixed = mixed + (weights[..., n:].transpose(2, 3)[..., None] * own_values).sum(2)
    return mixed.transpose(1, 2).contiguous(), None


def visible_steps(length: int, steps: int, device: torch.device) -> Tensor:
    """Sight of entries in `attend` without a mask: [1, 1, n, steps n] bool."""
    own = torch.eye(length, dtype=torch.bool, device=device)
    return torch.cat([torch.ones_like(own).tril(), *[own] * (steps - 1)], 1)[None, None]


@contextmanager
def along_texts(config: Any) -> Iterator[None]:
    """Within the block, layers of this config attend by `attend`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ALONG_TEXTS, attend)
    before = config._attn_implementation
    config._attn_implementation = ALONG_TEXTS
    try:
        yield
    finally:
        config._attn_implementation = before
