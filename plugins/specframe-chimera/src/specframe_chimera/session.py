"""Decoding a batch: what the full context encoder has cached of the committed text, and the draft in the making.

A pair (feature i, token i + 1) is two entries of the encoder: the feature, and the n-gram that ends with the
token. A drafted token is one: its n-gram. With one attention layer an entry's key and value depend on that entry
alone, so nothing committed is ever computed again, and the draft's entries wait behind for the next commit to
write over them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specframe import Committed, Frontier
from specframe.neural import Blocks, DecoderLayer, SlotCache
from specframe_chimera.network import NOTHING


class Session:
    """The decoding state of a batch of rows, from their prompts on.

    Slots of the cache: feature i of a row at 2 i, the n-gram beside it at 2 i + 1. Behind the longest row's stand the
    draft's n-grams, at the same slots in every row.

    Args:
        layer: the full context encoder.
        encode: the states of n-grams, [.., n] tokens -> [.., D].
        ngram: n.
        batch: the number of rows.
        spare: how many slots more than it needs the cache gets when it is made or grown.
    """

    feature: Tensor
    """The last true feature of every row, [B, D], once something was committed."""

    def __init__(
        self, layer: DecoderLayer, encode: Callable[[Tensor], Tensor], ngram: int, batch: int, *, spare: int = 512
    ) -> None:
        like = next(layer.parameters())
        self.layer = layer
        self.encode = encode
        self.spare = spare
        self.counts = [0] * batch  # pairs of each row that are cached
        self.recent = like.new_full((batch, ngram), NOTHING, dtype=torch.int64)  # the last tokens, the root's last
        self.cache = SlotCache(1, 0)
        self.visible = like.new_zeros(batch, 0, dtype=torch.bool)  # [B, W] which slots hold cached pairs
        self.pending: tuple[Tensor, Tensor, list[int]] | None = None  # tokens [B, M], features, each row's count
        self.draft: list[Blocks] = []  # the root's, and what was expanded below it

    def commit(self, news: Committed) -> None:
        """Stashes newly committed pairs; the next draft's first forward takes them in."""
        self._settle()
        counts = news.count.tolist()
        tokens, features = news.tokens[:, : max(counts)], news.features["last"][:, : max(counts)]
        self.feature = features[torch.arange(len(tokens), device=tokens.device), news.count - 1]
        self.pending = tokens, features, counts

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        chosen = rows.tolist()
        if self.pending is not None:
            tokens, features, fresh = self.pending
            fresh = [fresh[row] for row in chosen]
            self.pending = tokens[rows, : max(fresh)], features[rows, : max(fresh)], fresh
        self.counts = [self.counts[row] for row in chosen]
        self.recent = self.recent[rows]
        self.feature = self.feature[rows]
        self.cache.keep(rows)
        self.visible = self.visible[rows]
        self.draft = [root.keep(rows) for root in self.draft[:1]]

    def expand(self, frontier: Frontier) -> tuple[Tensor, Tensor]:
        """The encoder's states at the frontier nodes' n-grams, [B, F, D], and the nodes' depths, [B, F].

        The root starts a draft. Every other node's parent was expanded before.
        """
        if frontier.tree.levels == 0:
            self._settle()
            del self.draft[1:]
            root = self.draft[0]
            return root.features[:, :, 0], torch.zeros_like(root.position)
        known, root = Blocks.joined(self.draft), self.draft[0]
        nodes = frontier.nodes
        width = nodes.shape[1]
        parent = frontier.tree.parent.gather(1, nodes).clamp(min=0)
        origin = known.take(parent)
        position = origin.position + 1
        own = torch.eye(width, dtype=torch.bool, device=nodes.device).expand(len(nodes), -1, -1)
        sees = torch.cat([origin.sees, own], 2)  # [B, F, S + F]
        end = self.visible.shape[1] + sees.shape[2]
        self._reserve(end)
        self.cache.aim(end - width, end)
        mask = torch.cat([self.visible[:, None].expand(-1, width, -1), sees], 2)  # [B, F, W + S + F]
        states = self.layer(self.encode(self._grams(frontier)), position, mask[:, None], self.cache)  # [B, F, D]
        self.draft.append(Blocks(nodes, states[:, :, None], (), position, sees))
        is_root = nodes == 0  # it may be asked for again beside deeper nodes
        depth = torch.where(is_root, 0, position - root.position)
        return torch.where(is_root[..., None], root.features[:, :, 0], states), depth

    def _settle(self) -> None:
        """Takes in pending pairs: keys and values are cached, a draft can start.

        All queries see all that is cached of their row: of the outputs only the last n-gram's is wanted.
        """
        if self.pending is None:
            return
        tokens, features, fresh = self.pending
        self.pending = None
        starts, device = self.counts, tokens.device
        self.counts = [have + more for have, more in zip(starts, fresh, strict=True)]
        batch, length = tokens.shape
        more, counts = torch.tensor([fresh, self.counts], device=device)  # [B] each
        ragged = min(fresh) < max(fresh)

        text = torch.cat([self.recent, tokens], 1)  # [B, n + M]
        grams = text[:, 1:].unfold(1, self.recent.shape[1], 1)  # [B, M, n]
        if ragged:
            inside = torch.arange(length, device=device) < more[:, None]
            grams = torch.where(inside[..., None], grams, NOTHING)
        self.recent = text.gather(1, more[:, None] + torch.arange(self.recent.shape[1], device=device))
        entries = torch.stack([features, self.encode(grams)], 2).flatten(1, 2)  # [B, 2 M, D]

        width = 2 * max(self.counts)
        self._reserve(2 * (max(starts) + length))
        entry = torch.arange(2 * length, device=device)
        slots = entry + 2 * (counts - more)[:, None]  # [B, 2 M]
        self.cache.aim(slots if min(starts) < max(starts) else 2 * starts[0], width)
        self.visible = torch.arange(width, device=device) < 2 * counts[:, None]  # [B, W]
        mask = self.visible[:, None, None].expand(-1, -1, 2 * length, -1)
        states = self.layer(entries, (slots + 1) // 2, mask, self.cache)  # [B, 2 M, D]
        last = states[torch.arange(batch, device=device), 2 * more - 1]  # [B, D]
        self.draft = [Blocks.of_root(last[:, None], (), counts)]

    def _grams(self, frontier: Frontier) -> Tensor:
        """The n-grams that end with each frontier node, [B, F, n]; padding and the root have none to compute."""
        tree, node = frontier.tree, frontier.nodes
        size = self.recent.shape[1]
        recent = self.recent.flip(1)  # [B, n], the root first
        above = torch.zeros_like(node)  # how far above the root a climb has come
        tokens = []
        for _ in range(size):
            older = recent.gather(1, above)
            tokens.append(torch.where(node == 0, older, tree.tokens.gather(1, node)))
            above = (above + (node == 0)).clamp(max=size - 1)
            node = tree.parent.gather(1, node).clamp(min=0)
        drafted = (frontier.nodes > 0) & tree.valid.gather(1, frontier.nodes)
        return torch.where(drafted[..., None], torch.stack(tokens[::-1], 2), NOTHING)

    def _reserve(self, slots: int) -> None:
        """Sees to it that the cache has this many slots."""
        if slots > self.cache.capacity:
            self.cache.grow(max(2 * self.cache.capacity, slots + self.spare))
