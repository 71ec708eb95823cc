"""Modules of Llama's family, named as in transformers and bit-identical to it, without importing transformers' models.

That import takes a second and 130 MB. Native passes need only the weights, and a drafter's layer needs a forward
pass. Along whole texts, in training, its attention is computed as products of whole matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from specframe.native.bounds import FAMILIES, ROTARY

STD = 0.02
"""Standard deviation of new weights if the config has none."""
ALONG_TEXTS = "specframe_along_texts"
"""The name under which transformers' layers find `attend`."""


def is_llama(config: Any) -> bool:
    """Returns whether these modules are those of a config of transformers."""
    rope = getattr(config, "rope_parameters", None) or {}
    known = config.model_type in FAMILIES and rope.get("rope_type") in ROTARY
    return known and config.hidden_act == "silu"


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Applies the rotary embedding of their positions to heads [B, H, T, d].

    The halves are slices, as in transformers: with `chunk`, gradients of the norms differ in their last bits.
    """
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """[.., D] -> [.., D]."""
        states = x.float()
        states = states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * states.to(x.dtype)

    def extra_repr(self) -> str:
        """Describes size and epsilon."""
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"


class RotaryEmbedding(nn.Module):
    """Cosines and sines of positions, with frequencies that do not depend on the text's length."""

    inv_freq: Tensor

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.rope_type: str = config.rope_parameters["rope_type"]
        if self.rope_type == "default":
            size = _head_size(config)
            steps = torch.arange(0, size, 2, dtype=torch.float) / size
            frequencies, self.attention_scaling = 1.0 / (config.rope_parameters["rope_theta"] ** steps), 1.0
        else:
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

            frequencies, self.attention_scaling = ROPE_INIT_FUNCTIONS[self.rope_type](config)
        self.register_buffer("inv_freq", frequencies, persistent=False)

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The cosines and sines of positions [B, T], [B, T, d] each, in the dtype of x."""
        angles = position_ids[..., None].float() * self.inv_freq.to(x.device, torch.float)
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


class LlamaAttention(nn.Module):
    """Attention by transformers' functions, which are imported when it first runs."""

    is_causal = True

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer
        self.head_dim = _head_size(config)
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.attention_dropout: float = config.attention_dropout
        width, heads, groups = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
        biased = config.model_type == "qwen2"
        bias: bool = biased or getattr(config, "attention_bias", False)
        self.q_proj = nn.Linear(width, heads * self.head_dim, bias)
        self.k_proj = nn.Linear(width, groups * self.head_dim, bias)
        self.v_proj = nn.Linear(width, groups * self.head_dim, bias)
        self.o_proj = nn.Linear(heads * self.head_dim, width, bias and not biased)
        if config.model_type == "qwen3":
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        use_cache: bool = False,
    ) -> tuple[Tensor, None]:
        """[B, T, D] -> [B, T, D] and no weights, with the arguments of transformers' attention."""
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        queries, keys = self.q_proj(hidden_states).view(heads), self.k_proj(hidden_states).view(heads)
        if self.config.model_type == "qwen3":
            queries, keys = self.q_norm(queries), self.k_norm(keys)
        values = self.v_proj(hidden_states).view(heads).transpose(1, 2)
        cos, sin = (part[:, None] for part in position_embeddings)
        queries, keys = (_turned(part.transpose(1, 2), cos, sin) for part in (queries, keys))
        if cache is not None:
            keys, values = cache.update(keys, values, self.layer_idx)
        dropout = self.attention_dropout if self.training else 0.0
        mixed, _ = attention_function(self.config._attn_implementation)(
            self, queries, keys, values, attention_mask, dropout=dropout, scaling=self.scaling
        )
        return self.o_proj(mixed.reshape(*hidden_states.shape[:-1], -1).contiguous()), None


def attention_function(implementation: str) -> Any:
    """transformers' attention function of a name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)


def eager_attention_forward(*inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """transformers' eager attention, under the name that its own modules use."""
    from transformers.models.llama import modeling_llama

    found: tuple[Tensor, Tensor] = modeling_llama.eager_attention_forward(*inputs, **options)
    return found


class MLP(nn.Module):
    """The gated MLP of a layer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        bias: bool = getattr(config, "mlp_bias", False)
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias)

    def forward(self, x: Tensor) -> Tensor:
        """[.., D] -> [.., D]."""
        states: Tensor = self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return states


class LlamaLayer(nn.Module):
    """A decoder layer."""

    def __init__(self, config: Any, layer: int = 0) -> None:
        super().__init__()
        self.self_attn = LlamaAttention(config, layer)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Any = None,
        use_cache: bool = False,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """[B, T, D] -> [B, T, D], with the arguments of transformers' layers."""
        assert position_embeddings is not None
        normed = self.input_layernorm(hidden_states)
        mixed, _ = self.self_attn(normed, position_embeddings, attention_mask, cache=cache)
        hidden_states = hidden_states + mixed
        states: Tensor = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return states


class Decoder(nn.Module):
    """The embedding, the layers and the final norm; their rotary embedding is never on the meta device."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        table = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, _weight=table)
        if not table.is_meta:  # random numbers on meta are a slow import
            self.embed_tokens.reset_parameters()
        self.layers = nn.ModuleList([LlamaLayer(config, index) for index in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        with torch.device("cpu"):
            self.rotary_emb = RotaryEmbedding(config)

    @classmethod
    def initialised(cls, config: Any) -> Decoder:
        """A decoder with new float32 weights, drawn in transformers' way and order."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        try:
            decoder = cls(config)
            spread = getattr(config, "initializer_range", None) or STD
            for module in decoder.modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    nn.init.normal_(module.weight, 0.0, spread)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)
        finally:
            torch.set_default_dtype(before)
        return decoder


def _head_size(config: Any) -> int:
    size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return size


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
    """An attention function in transformers' form; returns the output, [B, n, heads, d], and no weights.

    On a CPU the backward pass of PyTorch's attention does not use bfloat16 instructions. Over a few hundred tokens,
    products of whole matrices take half to a quarter of the time.

    Without a mask, entries attend causally to the first n keys, and entry i to key i of every further n keys: these
    belong to later steps of a training-time test (EAGLE-3), the last of which is its own.

    Args:
        module: the attention layer; not used.
        query: [B, heads, n, d].
        key: [B, key heads, S, d]; S is a multiple of n without a mask.
        value: as `key`.
        attention_mask: [B or 1, 1, n, S] bool, True where an entry sees a key; None: as above.
        scaling: the factor of the products; None: 1 / sqrt(d).
        dropout: not used, since it is 0 in every drafter's layers.
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
    """The mask that `attend` implies without one: [1, 1, n, steps n] bool."""
    own = torch.eye(length, dtype=torch.bool, device=device)
    return torch.cat([torch.ones_like(own).tril(), *[own] * (steps - 1)], 1)[None, None]


@contextmanager
def along_texts(config: Any) -> Iterator[None]:
    """A context in which layers of this config use `attend`."""
    from transformers import AttentionInterface

    AttentionInterface.register(ALONG_TEXTS, attend)
    before = config._attn_implementation
    config._attn_implementation = ALONG_TEXTS
    try:
        yield
    finally:
        config._attn_implementation = before
