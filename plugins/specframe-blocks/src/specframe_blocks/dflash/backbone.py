"""DFlash's network and session: layers over a block of tokens, with keys and values of the target's features."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AutoModel

from specframe import CompositionError
from specframe.neural import (
    Blocks,
    DraftNetwork,
    DraftSession,
    Embed,
    Pending,
    RowSession,
    rotation,
    tensor_on,
    turned,
)
from specframe.plugin import PairSpec, Predicted

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from specframe.plugin import Frontier
    from specframe_blocks.dflash.plan import BlockPlan, OwnHead

Memory = list[tuple[Tensor, Tensor]]
"""Keys and values of the committed text, for each layer: [B, heads, W, d] each."""


class Backbone(DraftNetwork, nn.Module):
    """The block-diffusion drafter of DFlash (arXiv 2602.06036), with the published weight names.

    `fc` and `hidden_norm` map the concatenated features of the taps to one context feature. A block is the root's
    embedding, followed by copies of the mask token's. In every layer, the block attends to itself, in both directions,
    and to the context, whose keys and values are computed by the same maps without the layer's norm. Context feature i
    is at position i, like its token; the root follows the last one. A layer with a window sees only the newest context
    features.

    Args:
        config: of the layers, as `layer_config` returns it.
        plan: its other properties.
        own: its own LM head, if it has one.
    """

    d2t: Tensor | None
    t2d: Tensor | None

    def __init__(self, config: PretrainedConfig, plan: BlockPlan, own: OwnHead | None = None) -> None:
        super().__init__()
        model = _bare_model(config)
        self.config, self.plan = config, plan
        self.spec = PairSpec(
            taps=tuple(f"layer.{layer}" for layer in plan.taps), imitates=None, feeds=False, side_by_side=False
        )
        self.levels = plan.levels
        size = int(config.hidden_size)
        self.fc = nn.Linear(len(plan.taps) * size, size, bias=False)
        self.hidden_norm: nn.Module = copy.deepcopy(model.norm)
        self.layers: nn.ModuleList = model.layers
        self.norm: nn.Module = model.norm
        self._rotary = (model.rotary_emb,)  # in a tuple, so that nn.Module does not cast its buffers
        self.lm_head = None if own is None else nn.Linear(size, own.rows, bias=False)
        tokens = None if own is None else own.tokens
        self.register_buffer("d2t", None if tokens is None else tokens - torch.arange(len(tokens)))
        inside = tokens is not None and own is not None and own.listed
        self.register_buffer("t2d", torch.zeros(int(config.vocab_size), dtype=torch.bool) if inside else None)

    @property
    def support(self) -> Tensor | None:
        """The tokens of its own LM head, int64 [v]; None: the whole vocabulary, or it has no own head."""
        return None if self.d2t is None else self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)

    def fuse(self, features: Tensor) -> Tensor:
        """Returns the context features, given the taps' concatenated features: [.., A D] -> [.., H]."""
        fused: Tensor = self.hidden_norm(self.fc(features))
        return fused

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, positions: Tensor | None, mask: Tensor | None
    ) -> Predicted:
        """Returns the predictions of a block after every entry; `mask` must be None, because texts are separate."""
        entries = torch.arange(features.shape[1], device=features.device).expand(len(features), -1)
        return self.blocks(features, tokens, embed, entries)

    def blocks(self, features: Tensor, tokens: Tensor, embed: Embed, entries: Tensor) -> Predicted:
        """Returns the predictions of blocks that start after these entries [B, A] of texts: [B, A, K, H].

        Entry i is context feature i and token i + 1, which is the root of its block; the block sees the context up to
        i.
        """
        return self.predicted(self.states(features, tokens, embed, entries))

    def predicted(self, read: Tensor) -> Predicted:
        """Returns predictions for the LM head, the backbone's own if it has one."""
        return Predicted(read, read=self.lm_head)

    def states(self, features: Tensor, tokens: Tensor, embed: Embed, entries: Tensor) -> Tensor:
        """Returns the LM head's inputs for these blocks: [B, A, K, H]."""
        memory = self.remember(features, torch.arange(features.shape[1], device=features.device)[None])
        sees = torch.arange(features.shape[1], device=features.device) <= entries[..., None]  # [B, A, n]
        return self(self.start(tokens.gather(1, entries), embed), memory, sees, entries + 1)

    def start(self, roots: Tensor, embed: Embed) -> Tensor:
        """Returns the rows of blocks with these roots, [B, A] -> [B, A, S, H]."""
        masks = roots.new_full((*roots.shape, self.plan.size - 1), self.plan.mask)
        return embed(torch.cat([roots[..., None], masks], -1))

    def remember(self, context: Tensor, positions: Tensor) -> Memory:
        """Returns the keys and values of context features [B, n, H] at positions [B or 1, n], layer by layer."""
        rope = self.rope(context, positions)
        return [keys_values(self.attention(layer), context, rope) for layer in range(len(self.layers))]

    def forward(self, rows: Tensor, memory: Memory, sees: Tensor, first: Tensor) -> Tensor:
        """Computes the LM head's inputs for blocks: rows [B, A, S, H] -> [B, A, K, H].

        Args:
            rows: rows of A blocks per text.
            memory: W keys and values of each text's context.
            sees: [B, A, W] bool, the entries that a block sees.
            first: [B, A] int64, the position of its root.
        """
        size = rows.shape[2]
        positions = first[..., None] + torch.arange(size, device=rows.device)  # [B, A, S]
        cos, sin = (part.unflatten(1, positions.shape[1:]) for part in self.rope(rows, positions.flatten(1)))
        views = [self.plan.view(layer) for layer in range(len(memory))]
        masks = {view: _mask(sees, first, size, *view) for view in set(views)}
        x = rows
        for number, (keys, values) in enumerate(memory):
            layer: Any = self.layers[number]
            mask = masks[views[number]]
            x = x + attend(layer.self_attn, layer.input_layernorm(x), keys, values, (cos, sin), mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        out: Tensor = self.norm(x if self.plan.from_anchor else x[:, :, 1:])
        return out

    def attention(self, layer: int) -> Any:
        """Returns a layer's attention, with transformers' maps and norms."""
        return self.layers[layer].self_attn

    def rope(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines of positions [B, T]: [B, T, d] each."""
        return rotation(self._rotary[0], like, positions)

    def open(self, embed: Embed, slots: int, room: int) -> DraftSession:
        """Returns an empty session for at most `slots` rows of at most `room` positions each."""
        return BlockSession(self, embed, slots, room=room)


class BlockSession(RowSession):
    """Decoding state of a session's rows: a block is drafted below the root, and none of it is kept.

    Slot i of the cache holds the keys and values of context feature i, in all layers.

    The arguments are those of `specframe.neural.FeatureSession`.
    """

    def __init__(self, network: Backbone, embed: Embed, slots: int, *, room: int = 0, spare: int = 256) -> None:
        super().__init__(network.fc.weight, network.spec, slots, room, spare, len(network.layers))
        self.network = network
        self.embed = embed

    def prepare(self, entries: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Returns the tokens [B, M] and the context features [B, M, H]."""
        tokens, features = entries
        return tokens, self.network.fuse(features)

    def seen(self, counts: list[int]) -> Tensor:
        """Returns a mask of the slots with the rows' `counts` features: [B, W] bool, W up to the longest row's end."""
        device = self.network.fc.weight.device
        slots = torch.arange(max(counts, default=0), device=device)
        return slots < tensor_on(device, counts)[:, None]

    def take(self, pending: Pending) -> Blocks:
        """Caches keys and values of new features, and computes the block below every row's root."""
        tokens, context = pending.pairs
        device = tokens.device
        new = self.network.remember(context, self.aim_after(pending, tokens.shape[1]))
        memory = [self.cache.update(*part, layer) for layer, part in enumerate(new)]
        sees = self.seen(pending.counts)
        sees = pad(sees, (0, self.cache.width - sees.shape[1]))[:, None]  # [B, 1, W]
        counts = tensor_on(device, pending.counts)
        ends = tensor_on(device, pending.fresh)[:, None] - 1
        rows = self.network.start(tokens.gather(1, ends), self.embed)  # [B, 1, S, H]
        states = self.network(rows, memory, sees, counts[:, None])[:, 0]  # [B, K, H]
        return Blocks.of_root(states, (), counts)

    def expand(self, frontier: Frontier) -> Predicted:
        """Returns the block below the root, repeatedly if asked. Raises CompositionError for nodes below the block."""
        if frontier.tree.levels == 0:
            self.flush()
        elif bool((frontier.nodes != 0).any()):
            raise too_long(self.network.levels)
        return self.network.predicted(self.draft[0].outputs.expand(-1, frontier.nodes.shape[1], -1, -1))


def _mask(sees: Tensor, first: Tensor, size: int, window: int | None, causal: bool) -> Tensor:
    """Returns the mask of one kind of layer, [B, 1, 1, A, S, W + S], for blocks that see [B, A, W] of the context.

    A window is counted from the root, at position `first` [B, A], for all rows of a block.
    """
    if window is not None:
        sees = sees & (torch.arange(sees.shape[2], device=sees.device) >= first[..., None] - window)
    own = torch.ones(size, size, dtype=torch.bool, device=sees.device)
    own = (own.tril() if causal else own).expand(*sees.shape[:2], size, size)
    return torch.cat([sees[:, :, None].expand(-1, -1, size, -1), own], -1)[:, None, None]


def too_long(levels: int) -> CompositionError:
    """Returns the error for a tree deeper than a block."""
    return CompositionError(
        f"the drafter's blocks are of {levels} tokens, and nothing is drafted below them: make the tree at most "
        f"{levels} deep, or train a drafter of a larger block_size"
    )


def keys_values(attention: Any, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Returns the keys and values of [B, n, H]: [B, heads, n, d] each."""
    heads = (-1, attention.head_dim)
    keys = attention.k_norm(attention.k_proj(x).unflatten(-1, heads)).transpose(1, 2)
    cos, sin = (part[:, None] for part in rope)
    return turned(keys, cos, sin), attention.v_proj(x).unflatten(-1, heads).transpose(1, 2)


def attend(
    attention: Any, x: Tensor, keys: Tensor, values: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor
) -> Tensor:
    """Returns the attention from blocks [B, A, S, H] to the context's keys and values [B, G, W, d] and to the block.

    The blocks of a text share its context but never see each other, so the scores are those of the context and those
    within a block, [B, G, Q, A, S, W + S] together; Q queries share a key head.
    """
    size = attention.head_dim
    heads, groups = (-1, size), keys.shape[1]
    cos, sin = (part[:, :, :, None] for part in rope)  # [B, A, S, 1, d]
    queries = turned(attention.q_norm(attention.q_proj(x).unflatten(-1, heads)), cos, sin)
    queries = queries.unflatten(3, (groups, -1)).permute(0, 3, 4, 1, 2, 5)  # [B, G, Q, A, S, d]
    own_keys = turned(attention.k_norm(attention.k_proj(x).unflatten(-1, heads)), cos, sin)
    own_keys, own_values = (
        part.permute(0, 3, 1, 2, 4) for part in (own_keys, attention.v_proj(x).unflatten(-1, heads))
    )
    outside = torch.einsum("bgqasd,bgwd->bgqasw", queries, keys)
    inside = torch.einsum("bgqasd,bgatd->bgqast", queries, own_keys)
    scores = torch.cat([outside, inside], -1) * size**-0.5
    scores = scores.masked_fill(~mask, -torch.inf)
    shares = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(x.dtype)
    width = keys.shape[2]
    mixed = torch.einsum("bgqasw,bgwd->basgqd", shares[..., :width], values)
    mixed = mixed + torch.einsum("bgqast,bgatd->basgqd", shares[..., width:], own_values)
    out: Tensor = attention.o_proj(mixed.flatten(3))
    return out


def _bare_model(config: PretrainedConfig) -> Any:
    """Returns a model of these layers without a vocabulary."""
    small = copy.deepcopy(config)
    small.vocab_size = 1  # the target's embedding is used; don't allocate a second one
    small.pad_token_id = small.bos_token_id = small.eos_token_id = None
    build: Any = AutoModel.from_config
    return build(small, dtype=torch.float32)
