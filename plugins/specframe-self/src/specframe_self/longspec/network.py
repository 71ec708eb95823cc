"""LongSpec's network: self-attention over a window, cross-attention to the target's last layer, an MLP."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AutoModel

from specframe import CompositionError
from specframe.neural import DraftNetwork, DraftSession, Embed, layer_config, rotation, turned
from specframe.plugin import PairSpec, Predicted
from specframe_self.longspec.memory import LastLayer

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from specframe.neural import State

UNVERIFIED = 4
"""Maximum number of tokens before an entry whose target keys training hides; in a draft they are not verified yet."""


@dataclass(frozen=True)
class SeenKeys:
    """Keys and values that T entries see according to a mask, and the entries' positions."""

    keys: Tensor  # [B, key heads, S, d], rotated
    values: Tensor  # [B, key heads, S, d]
    mask: Tensor  # [B or 1, T, S] bool
    positions: Tensor  # [B, T] int64


class LongAttention(nn.Module):
    """The maps of one attention; for cross-attention, keys and values are the target's."""

    def __init__(self, config: PretrainedConfig, *, crossed: bool) -> None:
        super().__init__()
        self.size = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        heads, groups = int(config.num_attention_heads), int(config.num_key_value_heads)
        self.q_proj = nn.Linear(config.hidden_size, heads * self.size)
        if not crossed:
            self.k_proj = nn.Linear(config.hidden_size, groups * self.size)
            self.v_proj = nn.Linear(config.hidden_size, groups * self.size)
        self.o_proj = nn.Linear(heads * self.size, config.hidden_size, bias=False)
        for part in (each for each in self.modules() if isinstance(each, nn.Linear)):
            nn.init.normal_(part.weight, std=config.initializer_range)
            if part.bias is not None:
                nn.init.zeros_(part.bias)

    def heads(self, x: Tensor) -> Tensor:
        """Splits a map's outputs into heads: [B, T, heads * d] -> [B, heads, T, d]."""
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def forward(self, x: Tensor, seen: SeenKeys, turn: tuple[Tensor, Tensor]) -> Tensor:
        """Returns the attention's output, [B, T, D] -> [B, T, D]; `turn` has cosines and sines of the positions."""
        queries = turned(self.heads(self.q_proj(x)), *turn)  # [B, heads, T, d]
        batch, heads, count, _ = queries.shape
        groups = seen.keys.shape[1]
        queries = queries.reshape(batch, groups, -1, self.size)  # [B, G, Q T, d], Q queries per key head
        scores = queries @ seen.keys.to(queries.dtype).transpose(2, 3) * self.size**-0.5
        hidden = ~seen.mask[:, None].repeat(1, 1, heads // groups, 1)  # [B or 1, 1, Q T, S]
        shares = scores.masked_fill(hidden, -torch.inf).softmax(-1).to(queries.dtype)
        mixed = (shares @ seen.values.to(queries.dtype)).reshape(batch, heads, count, self.size)
        out: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return out


class LongNetwork(DraftNetwork, nn.Module):
    """One block over the embeddings of tokens, with the published weight names; no norm follows.

    Entry i is token i + 1, at position i + 1. It attends to the newest `window` entries, and with separate queries to
    the keys and values of the target's last layer, of verified tokens alone.

    Args:
        config: of the target.
        window: number of entries that the first attention sees, including the entry itself.
        source: computes the keys and values of the target's last layer for training texts.
    """

    count = 1
    """Number of decoder layers."""

    def __init__(self, config: PretrainedConfig, window: int, source: LastLayer) -> None:
        super().__init__()
        self.spec = PairSpec(taps=(), imitates=None, feeds=False, side_by_side=False, given=(source.tap,))
        self.config = layer_config(config, "qwen2")
        small = copy.deepcopy(self.config)
        small.vocab_size, small.pad_token_id, small.bos_token_id, small.eos_token_id = 1, None, None, None
        build: Any = AutoModel.from_config
        model = build(small, dtype=torch.float32)
        self.window, self.source = window, source
        self.input_layernorm: nn.Module = model.layers[0].input_layernorm
        self.self_attn = LongAttention(self.config, crossed=False)
        self.post_self_attention_layernorm: nn.Module = copy.deepcopy(self.input_layernorm)
        self.cross_attn = LongAttention(self.config, crossed=True)
        self.post_cross_attention_layernorm: nn.Module = copy.deepcopy(self.input_layernorm)
        self.mlp: nn.Module = model.layers[0].mlp
        self._rotary = (model.rotary_emb,)  # in a tuple, so that nn.Module does not cast its buffers

    @property
    def layer(self) -> LongNetwork:
        """The block, which is the only layer."""
        return self

    @property
    def width(self) -> int:
        """Width of its inputs."""
        return int(self.config.hidden_size)

    def start(self, batch: int) -> State:
        """Returns the state before the first entry, which is empty."""
        return ()

    def inputs(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """Returns the embeddings unchanged, which are the block's inputs."""
        return pairs, state

    def features(self, outputs: Tensor) -> Tensor:
        """Returns the outputs; they are not fed back."""
        return outputs

    def predicted(self, outputs: Tensor) -> Predicted:
        """Returns the outputs as predictions: [B, n, K, D]."""
        return Predicted(outputs)

    def remember(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the keys and values of entries [B, T, D] at positions [B, T]: [B, key heads, T, d] each."""
        normed, attention = self.input_layernorm(x), self.self_attn
        keys = turned(attention.heads(attention.k_proj(normed)), *self.turn(x, positions))
        return keys, attention.heads(attention.v_proj(normed))

    def forward(self, x: Tensor, own: SeenKeys, memory: SeenKeys) -> Tensor:
        """Returns the LM head's inputs of entries, [B, T, D]; `own`: the drafter's entries, `memory`: the target's."""
        x = x + self.self_attn(self.input_layernorm(x), own, self.turn(x, own.positions))
        normed = self.post_self_attention_layernorm(x)
        x = x + self.cross_attn(normed, memory, self.turn(x, memory.positions))
        out: Tensor = x + self.mlp(self.post_cross_attention_layernorm(x))
        return out

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, positions: Tensor | None, mask: Tensor | None
    ) -> Predicted:
        """Returns the predictions along texts, given the inputs [B, n, D] of the target's last layer.

        In training the keys of the 0 to 3 tokens before an entry are hidden, as in a draft of that depth. Raises
        CompositionError for a mask, because versions of a text would need separate keys.
        """
        if mask is not None:
            raise CompositionError("drafter longspec is trained along single texts: use the rollout teacher-forced")
        batch, length, _ = features.shape
        device = features.device
        if positions is None:
            positions = torch.arange(length, device=device).expand(batch, -1)
        x = embed(tokens)
        hidden = int(torch.randint(UNVERIFIED, ())) if self.training else 0  # host generator: no device sync
        entry = torch.arange(length, device=device)
        apart = entry[:, None] - entry  # [n, n]
        near = ((apart >= 0) & (apart < self.window))[None]
        verified = ((apart >= hidden) | ((entry == 0) & (apart >= 0)))[None]  # a first entry sees itself
        own = SeenKeys(*self.remember(x, positions + 1), near, positions + 1)
        memory = SeenKeys(*self.source(features, positions), verified, positions + 1)
        return self.predicted(self(x, own, memory)[:, :, None])

    def turn(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines of positions [B, T], for heads: [B, 1, T, d] each."""
        cos, sin = (part[:, None].to(like.dtype) for part in rotation(self._rotary[0], like, positions))
        return cos, sin

    def open(self, embed: Embed, slots: int, room: int) -> DraftSession:
        """Raises CompositionError: a session needs the target's keys, which only the drafter can provide."""
        raise CompositionError("a session of longspec reads the target's keys: open the drafter's own")
