"""P-EAGLE's network and session: EAGLE-3's with several layers, where mask rows predict all levels at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from specframe import CompositionError
from specframe.neural import Blocks, DraftSession, Embed, FeatureSession, Pending, tensor_on
from specframe.plugin import Predicted
from specframe_eagle.wide import Wide, WideLayer

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from specframe.plugin import Frontier
    from specframe_eagle.parallel.layout import ParallelLayout

CHUNK = 64
"""Number of a text's entries whose levels are predicted at a time."""


class Tower(WideLayer):
    """EAGLE-3's layer followed by ordinary ones, [B, T, 2H] -> [B, T, H]; each may have a window.

    `windows` holds the number of positions that each layer sees, including its own, None for all; if empty, every layer
    sees all.
    """

    def __init__(
        self, config: PretrainedConfig, norm_before_residual: bool, windows: tuple[int | None, ...] = ()
    ) -> None:
        super().__init__(config, norm_before_residual)
        self._windows = windows or (None,) * config.num_hidden_layers

    def along(self, x: Tensor, positions: Tensor, mask: Tensor, cache: Cache, places: Tensor) -> Tensor:
        """Returns the last layer's output; each layer sees what `mask` allows within its window.

        Windows use the keys' positions `places` [B or 1, S] and the queries' `positions` [B, T].
        """
        masks: dict[int | None, Tensor] = dict.fromkeys(self._windows, mask)
        distance = positions[..., None] - places[:, None]  # [B, T, S]
        masks |= {width: mask & (distance < width)[:, None] for width in masks if width is not None}
        for (layer, _), width in zip(self.masked(mask, None), self._windows, strict=True):
            x = layer.one(x, positions, masks[width], cache)
        return x


class TextCache(Cache):
    """A text's keys and values in every layer, with gradients: written by the first pass, visible to later ones."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.text: dict[int, tuple[Tensor, Tensor]] = {}  # [B, heads, n, d] each
        self.seen = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Returns the keys and values that this pass's queries may see, [B, heads, S, d] each."""
        if layer_idx not in self.text:
            self.text[layer_idx] = key_states, value_states
            return key_states, value_states
        keys, values = (part[:, :, : self.seen] for part in self.text[layer_idx])
        return torch.cat([keys, key_states], 2), torch.cat([values, value_states], 2)


class Parallel(Wide):
    """The network of P-EAGLE (arXiv 2602.01469).

    The pair of entry i, token i + 1 and the fused features i, predicts the first level below that token. A mask row d
    levels further down has the mask token's embedding, and one learnt vector, `mask_hidden`, in place of features. Its
    position is d after its entry's; it sees the text up to that entry and the mask rows between, and predicts level d +
    1. No level depends on the tokens drawn for another.

    Args:
        layout: its layers, taps and switches.
        levels: number of predicted levels, K.
        mask: the mask token's embedding, [H].
        head: initial rows of its own LM head, [v, H]; None: it has none.
        embedding: initial rows of its own token embedding, [V, H]; None: the target's is used.
    """

    mask_row: Tensor

    def __init__(
        self, layout: ParallelLayout, levels: int, mask: Tensor, head: Tensor | None, embedding: Tensor | None
    ) -> None:
        super().__init__(layout.shape, layout.taps, layout.switches, head, layout.support)
        self.spec = replace(self.spec, feeds=False, side_by_side=False)
        self.levels = levels
        self.layer: Tower = Tower(layout.shape, layout.switches.norm_before_residual, layout.windows)
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, len(layout.taps) * layout.shape.hidden_size))
        self.mask_token = layout.mask
        self.register_buffer("mask_row", mask.detach().float().cpu(), persistent=False)
        self.embedding: nn.Embedding | None = None
        if embedding is not None:
            self.embedding = nn.Embedding.from_pretrained(embedding.detach().float().cpu().clone(), freeze=False)

    @property
    def native(self) -> None:
        """None: native code does not support mask rows."""
        return None

    def mask(self, pairs: Tensor) -> Tensor:
        """Returns the layer's inputs for the mask rows after pairs, all of them equal: [.., 2H] -> [.., K - 1, 2H]."""
        return self.mask_pair().expand(*pairs.shape[:-1], self.levels - 1, -1)

    def mask_pair(self) -> Tensor:
        """Returns a mask row's input, [2H]."""
        row = self.mask_row if self.embedding is None else self.embedding.weight[self.mask_token]
        return torch.cat([row, self.fuse(self.mask_hidden[0, 0])])

    def embedded(self, embed: Embed) -> Embed:
        """Returns the token embedding that it reads: its own, if it has one."""
        return embed if self.embedding is None else self.embedding

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, positions: Tensor | None, mask: Tensor | None
    ) -> Predicted:
        """Returns the predictions of all levels below every text entry, [B, n, K, H]; they use no drafted tokens."""
        pairs = self.paired(features, tokens, embed)
        batch, length, _ = pairs.shape
        heads, cache = self.along(pairs)
        depth = torch.arange(1, self.levels, device=pairs.device)
        found = [heads[:, :, None]]
        if self.levels > 1:
            chunks = []
            for first in range(0, length, CHUNK):
                last = min(first + CHUNK, length)
                entries = torch.arange(first, last, device=pairs.device).repeat_interleave(len(depth))
                depths = depth.repeat(last - first)
                real = torch.ones(batch, len(depths), dtype=torch.bool, device=pairs.device)
                rows = self.mask_outputs(cache, entries.expand(batch, -1), depths, real)
                chunks.append(rows.unflatten(1, (last - first, len(depth))))
            found.append(torch.cat(chunks, 1))
        return self.predicted(torch.cat(found, 2))

    def paired(self, features: Tensor, tokens: Tensor, embed: Embed) -> Tensor:
        """Returns the pairs of fused features [B, n, H] and the tokens after them: [B, n, 2H]."""
        return torch.cat([self.embedded(embed)(tokens[:, : features.shape[1]]), features], -1)

    def along(self, pairs: Tensor) -> tuple[Tensor, TextCache]:
        """Returns the outputs of a text's entries, [B, n, 2H] -> [B, n, H], and their keys and values."""
        batch, length, _ = pairs.shape
        index = torch.arange(length, device=pairs.device)
        cache = TextCache()
        sees = (index <= index[:, None])[None, None]
        return self.layer.along(pairs, index.expand(batch, -1), sees, cache, index[None]), cache

    def mask_outputs(self, cache: TextCache, entries: Tensor, depth: Tensor, real: Tensor) -> Tensor:
        """Returns the outputs of mask rows below entries of the text, [B, M, H].

        A row sees the text up to its entry, and the mask rows of that entry that are not deeper. The rows above a
        requested row must therefore be among the arguments.

        Args:
            cache: the cache that `along` filled.
            entries: [B, M] int64, the entries below which the rows lie.
            depth: [M] int64, 1 for the first row below an entry.
            real: [B, M] bool, the rows that exist; the outputs of others are meaningless.
        """
        cache.seen = int(entries.max()) + 1
        text = torch.arange(cache.seen, device=entries.device) <= entries[..., None]  # [B, M, W]
        own = (entries[:, None] == entries[..., None]) & (depth <= depth[:, None]) & real[:, None]  # [B, M, M]
        own = own | torch.eye(len(depth), dtype=torch.bool, device=own.device)
        inputs = self.mask_pair().expand(*entries.shape, -1)
        index = torch.arange(cache.seen, device=entries.device).expand(len(entries), -1)
        places = torch.cat([index, entries + depth], 1)
        return self.layer.along(inputs, entries + depth, torch.cat([text, own], -1)[:, None], cache, places)

    def open(self, embed: Embed, slots: int, room: int) -> DraftSession:
        """Returns an empty session for at most `slots` rows of at most `room` positions each."""
        return ParallelSession(self, self.embedded(embed), slots, room=room)


class ParallelSession(FeatureSession):
    """Decoding state of a session's rows: all levels are predicted with the committed pairs, none below these levels.

    Slot i of the cache holds pair i in every layer. With several layers, a pair's keys above the first layer depend on
    the pairs it saw, so pairs see no later ones. Mask rows follow all pairs for one forward pass.

    The arguments are those of `specframe.neural.FeatureSession`.
    """

    network: Parallel

    def take(self, pending: Pending) -> Blocks:
        """Caches pending pairs and predicts all levels below every row's root."""
        (pairs,), starts, device = pending.pairs, pending.starts, pending.pairs[0].device
        batch, length, _ = pairs.shape
        masks = self.network.mask(pairs[:, -1])  # [B, K - 1, 2H]
        extra = masks.shape[1]
        counts = tensor_on(device, pending.counts)
        steps = torch.arange(length, device=device)
        places = tensor_on(device, starts)[:, None] + steps  # [B, M]
        after = max(starts) + length  # the first slot after the pairs of all rows
        ends = torch.arange(after, after + extra, device=device).expand(batch, -1)
        keys = torch.arange(after + extra, device=device)
        cached = keys < counts[:, None]  # [B, W]
        text = cached[:, None] & (keys <= places[..., None])  # [B, M, W]
        block_mask = cached[:, None] | ((keys >= after) & (keys <= ends[0][:, None]))  # [B, K - 1, W]
        mask_positions = counts[:, None] + torch.arange(extra, device=device)
        width = after + extra
        self.reserve(width)
        even = min(starts) == max(starts)
        self.cache.aim(starts[0] if even else torch.cat([places, ends], 1), width, pending.first)
        outputs = self.network.layer.along(
            torch.cat([pairs, masks], 1),
            torch.cat([places, mask_positions], 1),
            torch.cat([text, block_mask], 1)[:, None],
            self.cache,
            torch.cat([keys[:after].expand(batch, -1), mask_positions], 1),
        )
        last = tensor_on(device, pending.fresh) - 1
        rows = torch.arange(batch, device=device)
        block = torch.cat([outputs[rows, last][:, None], outputs[:, length:]], 1)  # [B, K, H]
        return Blocks.of_root(block, (), counts)

    def expand(self, frontier: Frontier) -> Predicted:
        """Returns the levels below the root, repeatedly if asked. Raises CompositionError for nodes below them."""
        if frontier.tree.levels == 0:
            self.flush()
        elif bool((frontier.nodes != 0).any()):
            levels = self.network.levels
            raise CompositionError(
                f"the drafter peagle drafts {levels} levels and nothing below them: make the tree at most {levels} "
                "deep, or raise levels"
            )
        outputs = self.draft[0].outputs.expand(-1, frontier.nodes.shape[1], -1, -1)
        return self.network.predicted(outputs)
