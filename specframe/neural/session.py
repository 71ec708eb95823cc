"""Decoding a batch: what a feature drafter remembers of the committed pairs, and the draft in the making.

With one attention layer, a position's key and value depend on the layer's input at that position alone.
So blocks need no fixed alignment, and a cycle may commit any number of tokens: the last block is always
the one that ends at the newest pair.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe.kernel.types import Committed, Frontier
from specframe.neural.blocks import Blocks, State
from specframe.neural.cache import SlotCache
from specframe.neural.layer import DecoderLayer
from specframe.neural.queries import Queries, repeated

Recall = Callable[[Tensor, State, list[int] | None], tuple[Tensor, State]]
"""How pairs become the layer's input: recall(pairs [B, M, 2D], state, counts) -> ([B, M, D], the state after them).

With `counts` a row has that many pairs; what comes out beyond them is never used.
"""
Masks = Callable[[Tensor], Tensor]
"""The layer's inputs that stand in for the pairs behind a pair: masks(pair [.., 2D]) -> [.., k - 1, D]."""


class FeatureSession:
    """The decoding state of a batch of rows, from their prompts on, for drafters of one decoder layer.

    Position i of a row holds the pair (embedding of token i + 1, feature i); `recall` makes it the layer's
    input, and the output of a block's k positions predicts the k features after it. EAGLE is the case of
    k = 1 and no state, Falcon that of any k and an LSTM's state. ParallelSpec has masks: of a block's k queries
    j = 1 is a pair then, and the others are masks that stand behind it; without masks j = k.

    Slots of the cache: pair i of a row stands at slot i + j - 1. The j - 1 slots before stand for pairs
    before the first, which do not exist: their input is zero, and nobody sees them. Only a row with
    fewer than j pairs predicts from there, what it has no pair for. Behind the longest row's pairs stand
    the draft's, at the same slots in every row, until the next commit writes over them. Masks stand behind
    all pairs for the length of one forward; no later one sees them.

    Args:
        layer: the drafter's attention and MLP.
        recall: what comes before the layer.
        embed: the target's token embedding, [..] -> [.., D].
        batch: the number of rows.
        block: how many levels one forward proposes, k.
        state: what `recall` starts from.
        masks: what asks behind a block's one pair; none: all k are pairs.
        spare: how many slots more than it needs the cache gets when it is made or grown.
    """

    def __init__(
        self,
        layer: DecoderLayer,
        recall: Recall,
        embed: Callable[[Tensor], Tensor],
        batch: int,
        *,
        block: int = 1,
        state: State = (),
        masks: Masks | None = None,
        spare: int = 256,
    ) -> None:
        like = next(layer.parameters())
        self.layer = layer
        self.recall = recall
        self.embed = embed
        self.block = block
        self.masks = masks
        self.asking = block if masks is None else 1  # j, how many pairs of a block ask
        self.spare = spare
        self.counts = [0] * batch  # pairs of each row that are cached
        self.state = state
        self.tail = like.new_zeros(batch, self.asking - 1, layer.config.hidden_size)  # the last pairs' inputs
        self.cache = SlotCache(1, 0)
        self.visible = like.new_zeros(batch, 0, dtype=torch.bool)  # [B, W] which slots hold cached pairs
        self.pending: tuple[Tensor, list[int]] | None = None  # pairs [B, M, 2D] and each row's count
        self.draft: list[Blocks] = []  # the root's, and what was expanded below it

    def commit(self, news: Committed) -> None:
        """Stashes newly committed pairs; the next draft's first forward takes them in."""
        self._settle()
        counts = news.count.tolist() if news.counts is None else news.counts
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
        self.state = tuple(part[:, rows] for part in self.state)
        self.tail = self.tail[rows]
        self.cache.keep(rows)
        self.visible = self.visible[rows]
        self.draft = [root.keep(rows) for root in self.draft[:1]]

    def expand(self, frontier: Frontier) -> Tensor:
        """The features of the k levels below each frontier node, [B, F, k, D]; the root starts a draft.

        A node's block are the k path nodes that end at it, each paired with the feature predicted where
        its parent stands. The state goes on from the node expanded k levels above.
        """
        if frontier.tree.levels == 0:
            self._settle()
            del self.draft[1:]
            return self.draft[0].features
        known = Blocks.joined(self.draft) if len(self.draft) > 1 else self.draft[0]
        batch, width = frontier.nodes.shape
        k = self.block
        tokens, above = self._trace(frontier)
        origin = known.take(above)
        pairs = self._pairs(tokens, origin.features).flatten(0, 1)  # [BF, k, 2D]
        state = tuple(part.flatten(1, 2).contiguous() for part in origin.state)
        inputs, state = self.recall(pairs, state, None)  # [BF, k, D]

        own = torch.eye(width, dtype=torch.bool, device=tokens.device).expand(batch, -1, -1)
        sees = torch.cat([origin.sees, own], 2)  # [B, F, S + F]
        path = self._path(sees)  # [B, F, W + S k]
        positions = origin.position[:, :, None] + torch.arange(k, device=tokens.device)  # [B, F, k]
        asked = Queries(inputs.reshape(batch, width * k, -1), positions.flatten(1), repeated(path, k))
        if self.masks is not None:
            masks = self.masks(pairs[:, -1]).unflatten(0, (batch, width))  # [B, F, k - 1, D]
            asked = asked.followed_by(Queries.behind(masks, positions[:, :, -1], path))
        features = self._ask(asked, path.shape[2] - width * k)
        block = features[:, : width * k].unflatten(1, (width, k))  # [B, F, k, D]
        if self.masks is not None:
            block = torch.cat([block[:, :, -1:], features[:, width * k :].unflatten(1, (width, k - 1))], 2)
        state = tuple(part.view(-1, batch, width, part.shape[-1]) for part in state)
        self.draft.append(Blocks(frontier.nodes, block, state, origin.position + k, sees))
        is_root = (frontier.nodes == 0)[..., None, None]  # it may be asked for again beside deeper nodes
        return torch.where(is_root, self.draft[0].features[:, :1], block)

    def _settle(self) -> None:
        """Takes in pending pairs: keys and values are cached, the state moves on, a draft can start.

        Queries are made again for the j - 1 pairs before, since they belong to the last block; writing
        their keys and values again changes nothing. All queries see all pairs: of the outputs only the
        last block's are wanted. A mask sees the masks before it, too.
        """
        if self.pending is None:
            return
        pairs, fresh = self.pending
        self.pending = None
        starts, device = self.counts, pairs.device
        self.counts = [have + more for have, more in zip(starts, fresh, strict=True)]
        inputs, self.state = self.recall(pairs, self.state, fresh)
        if self.asking > 1:
            inputs = torch.cat([self.tail, inputs], 1)  # [B, T, D]
        batch, length, _ = inputs.shape

        counts = torch.tensor(self.counts, device=device)
        width = max(self.counts) + self.asking - 1
        pair = torch.arange(1 - self.asking, width - self.asking + 1, device=device)  # the one at each slot
        self.visible = (pair >= 0).expand(batch, -1)  # [B, W]
        if min(self.counts) < max(self.counts):
            self.visible = self.visible & (pair < counts[:, None])
        behind = max(starts) + length  # the first slot that no row writes a pair to
        path = self.visible[:, None]  # [B, 1, S], S = behind
        if behind > width:
            path = pad(path, (0, behind - width))
        even = min(starts) == max(starts)
        slots = torch.arange(length, device=device).expand(batch, -1)  # [B, T]
        slots = slots + (starts[0] if even else torch.tensor(starts, device=device)[:, None])
        asked = Queries(inputs, slots - (self.asking - 1), repeated(path, length))
        if self.masks is not None:
            masks = self.masks(_last(pairs, 1, fresh))  # [B, 1, k - 1, D]
            asked = asked.followed_by(Queries.behind(masks, counts[:, None] - 1, path))
            ends = torch.arange(behind, behind + masks.shape[2], device=device)
            slots = torch.cat([slots, ends.expand(batch, -1)], 1)
        features = self._ask(asked, starts[0] if even else slots)  # [B, T, D], and the masks'

        self.tail = _last(inputs, self.asking - 1, fresh)
        block = _last(features[:, :length], self.asking, fresh)
        if self.masks is not None:
            block = torch.cat([block, features[:, length:]], 1)  # [B, k, D]
        self.draft = [Blocks.of_root(block, self.state, counts)]

    def _ask(self, queries: Queries, slots: int | Tensor) -> Tensor:
        """The layer's outputs, [B, T, D]; keys and values are written at the slots, as `SlotCache.aim` has them."""
        width = queries.mask.shape[2]
        if width > self.cache.capacity:
            self.cache.grow(max(2 * self.cache.capacity, width + self.spare))
        self.cache.aim(slots, width)
        features: Tensor = self.layer(queries.inputs, queries.positions, queries.mask[:, None], self.cache)
        return features

    def _pairs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """What `recall` gets: [..], [.., D] -> [.., 2D], embedding first."""
        return torch.cat([self.embed(tokens), features], -1)

    def _trace(self, frontier: Frontier) -> tuple[Tensor, Tensor]:
        """The tokens of the k path nodes that end at each frontier node, [B, F, k], and the node above."""
        parent = frontier.tree.parent.clamp(min=0)  # at padding only, a walk may reach above the root
        path = [frontier.nodes]
        for _ in range(self.block - 1):
            path.append(parent.gather(1, path[-1]))
        tokens = [frontier.tree.tokens.gather(1, step) for step in reversed(path)]
        return torch.stack(tokens, 2), parent.gather(1, path[-1])

    def _path(self, sees: Tensor) -> Tensor:
        """Which slots lie on the path to each frontier node, its own pairs included: [B, F, S] -> [B, F, W + S k].

        `sees` says which of the S expansions below the root do.
        """
        committed = self.visible[:, None].expand(-1, sees.shape[1], -1)  # [B, F, W]
        drafted = sees[..., None].expand(-1, -1, -1, self.block).flatten(2)  # [B, F, S k]
        return torch.cat([committed, drafted], 2)


def _last(values: Tensor, width: int, fresh: list[int]) -> Tensor:
    """The last `width` positions of each row, [B, T, D] -> [B, width, D]; rows end with their fresh pairs."""
    length = values.shape[1]
    if min(fresh) == max(fresh):
        return values[:, length - width :]
    short = torch.tensor(fresh, device=values.device) - max(fresh)  # [B], how much earlier a row ends
    places = short[:, None] + torch.arange(length - width, length, device=values.device)  # [B, width]
    return values[torch.arange(len(fresh), device=values.device)[:, None], places]
