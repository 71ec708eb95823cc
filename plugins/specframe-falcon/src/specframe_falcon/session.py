"""Decoding a batch: what the drafter remembers of the committed pairs, and the draft in the making.

With one attention layer, a position's key and value depend on the LSTM's output at that position alone.
So blocks need no fixed alignment, and a cycle may commit any number of tokens: the last block is always
the one that ends at the newest pair.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specframe import Committed, Frontier
from specframe.neural import SlotCache
from specframe_falcon.blocks import Blocks
from specframe_falcon.network import LSTM_LAYERS, Network, State

SPARE = 256
"""How many slots more than it needs a cache gets when it is made or grown."""


class Session:
    """The decoding state of a batch of rows, from their prompts on.

    Slots of the cache: pair i of a row stands at slot i + k - 1. The k - 1 slots before stand for pairs
    before the first, which do not exist: their LSTM output is the LSTM's initial state, zero, and nobody
    sees them. Only a row with fewer than k pairs predicts from there, what it has no pair for. Behind
    the longest row's pairs stand the draft's, at the same slots in every row, until the next commit
    writes over them.
    """

    def __init__(self, network: Network, embed: Callable[[Tensor], Tensor], block: int, batch: int) -> None:
        like = next(network.parameters())
        size = network.lstm.hidden_size
        start = like.new_zeros(LSTM_LAYERS, batch, size)
        self.network = network
        self.embed = embed
        self.block = block
        self.counts = [0] * batch  # pairs of each row that are cached
        self.state: State = start, start
        self.tail = like.new_zeros(batch, block - 1, size)  # the LSTM's outputs for the last pairs
        self.cache = SlotCache(1, 0)
        self.visible = like.new_zeros(batch, 0, dtype=torch.bool)  # [B, W] which slots hold cached pairs
        self.pending: tuple[Tensor, list[int]] | None = None  # pairs [B, M, 2D] and each row's count
        self.draft: list[Blocks] = []  # the root's, and what was expanded below it

    def commit(self, news: Committed) -> None:
        """Stashes newly committed pairs; the next draft's first forward takes them in."""
        self._settle()
        counts = news.count.tolist()
        longest = max(counts)
        pairs = self._pairs(news.tokens[:, :longest], news.features["last"][:, :longest])
        self.pending = pairs, counts

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        chosen = rows.tolist()
        if self.pending is not None:
            pairs, fresh = self.pending
            fresh = [fresh[row] for row in chosen]
            self.pending = pairs[rows, : max(fresh)], fresh
        self.counts = [self.counts[row] for row in chosen]
        hidden, cell = self.state
        self.state = hidden[:, rows], cell[:, rows]
        self.tail = self.tail[rows]
        self.cache.keep(rows)
        self.visible = self.visible[rows]
        self.draft = [root.keep(rows) for root in self.draft[:1]]

    def expand(self, frontier: Frontier) -> Tensor:
        """The features of the k levels below each frontier node, [B, F, k, D]; the root starts a draft.

        A node's block are the k path nodes that end at it, each paired with the feature predicted where
        its parent stands. The LSTM goes on from the node expanded k levels above.
        """
        if frontier.tree.levels == 0:
            self._settle()
            del self.draft[1:]
            return self.draft[0].features
        known = Blocks.joined(self.draft) if len(self.draft) > 1 else self.draft[0]
        batch, width = frontier.nodes.shape
        k = self.block
        tokens, above = self._trace(frontier)
        origin = known.take(known.find(above))
        pairs = self._pairs(tokens, origin.features).flatten(0, 1)  # [BF, k, 2D]
        hidden, cell = (part.flatten(1, 2).contiguous() for part in origin.state)
        outputs, (hidden, cell) = self.network.recall(pairs, (hidden, cell))  # [BF, k, D]

        positions = origin.position[:, :, None] + torch.arange(k, device=tokens.device)  # [B, F, k]
        own = torch.eye(width, dtype=torch.bool, device=tokens.device).expand(batch, -1, -1)
        sees = torch.cat([origin.sees, own], 2)  # [B, F, S + F]
        end = self.visible.shape[1] + sees.shape[2] * k
        self._reserve(end)
        self.cache.aim(end - width * k, end)
        features = self.network.layer(
            outputs.reshape(batch, width * k, -1), positions.flatten(1), self._mask(sees), self.cache
        ).view(batch, width, k, -1)
        state = hidden.view(-1, batch, width, hidden.shape[-1]), cell.view(-1, batch, width, cell.shape[-1])
        self.draft.append(Blocks(frontier.nodes, features, state, origin.position + k, sees))
        is_root = (frontier.nodes == 0)[..., None, None]  # it may be asked for again beside deeper nodes
        return torch.where(is_root, self.draft[0].features[:, :1], features)

    def _settle(self) -> None:
        """Takes in pending pairs: keys and values are cached, the LSTM's state moves on, a draft can start.

        Queries are made again for the k - 1 pairs before, since they belong to the last block; writing
        their keys and values again changes nothing. All queries see all pairs: of the outputs only the
        last block's are wanted.
        """
        if self.pending is None:
            return
        pairs, fresh = self.pending
        self.pending = None
        starts, k, device = self.counts, self.block, pairs.device
        self.counts = [have + more for have, more in zip(starts, fresh, strict=True)]
        outputs, self.state = self.network.recall(pairs, self.state, fresh)
        outputs = torch.cat([self.tail, outputs], 1)  # [B, T, D]
        batch, length, _ = outputs.shape

        width = max(self.counts) + k - 1
        self._reserve(max(starts) + length)
        slots = torch.arange(length, device=device).expand(batch, -1)  # [B, T]
        if min(starts) == max(starts):
            slots = slots + starts[0]
            self.cache.aim(starts[0], width)
        else:
            slots = slots + torch.tensor(starts, device=device)[:, None]
            self.cache.aim(slots, width)
        counts = torch.tensor(self.counts, device=device)
        pair = torch.arange(1 - k, width - k + 1, device=device)  # the one at each slot
        self.visible = (pair >= 0).expand(batch, -1)  # [B, W]
        if min(self.counts) < max(self.counts):
            self.visible = self.visible & (pair < counts[:, None])
        mask = self.visible[:, None, None].expand(-1, -1, length, -1)
        features = self.network.layer(outputs, slots - (k - 1), mask, self.cache)  # [B, T, D]

        self.tail = _last(outputs, k - 1, fresh)
        self.draft = [Blocks.of_root(_last(features, k, fresh), self.state, counts)]

    def _pairs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """The network's inputs: [..], [.., D] -> [.., 2D], embedding first."""
        return torch.cat([self.embed(tokens), features], -1)

    def _trace(self, frontier: Frontier) -> tuple[Tensor, Tensor]:
        """The tokens of the k path nodes that end at each frontier node, [B, F, k], and the node above."""
        parent = frontier.tree.parent.clamp(min=0)  # at padding only, a walk may reach above the root
        path = [frontier.nodes]
        for _ in range(self.block - 1):
            path.append(parent.gather(1, path[-1]))
        tokens = [frontier.tree.tokens.gather(1, step) for step in reversed(path)]
        return torch.stack(tokens, 2), parent.gather(1, path[-1])

    def _mask(self, sees: Tensor) -> Tensor:
        """Which slots each of the frontier's pairs sees, given sees [B, F, S]: [B, 1, F k, W + S k]."""
        batch, width, count = sees.shape
        k = self.block
        committed = self.visible[:, None].expand(-1, width, -1)  # [B, F, W]
        drafted = sees[..., None].expand(-1, -1, -1, k).reshape(batch, width, count * k)
        mask = torch.cat([committed, drafted], 2)
        return mask[:, :, None].expand(-1, -1, k, -1).reshape(batch, 1, width * k, -1)

    def _reserve(self, slots: int) -> None:
        """Sees to it that the cache has this many slots."""
        if slots > self.cache.capacity:
            self.cache.grow(max(2 * self.cache.capacity, slots + SPARE))


def _last(values: Tensor, width: int, fresh: list[int]) -> Tensor:
    """The last `width` positions of each row, [B, T, D] -> [B, width, D]; rows end with their fresh pairs."""
    length = values.shape[1]
    if min(fresh) == max(fresh):
        return values[:, length - width :]
    short = torch.tensor(fresh, device=values.device) - max(fresh)  # [B], how much earlier a row ends
    places = short[:, None] + torch.arange(length - width, length, device=values.device)  # [B, width]
    return values[torch.arange(len(fresh), device=values.device)[:, None], places]
