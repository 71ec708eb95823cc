"""Decoding state of a batch: the full context encoder's cache of the committed text, and the current draft.

A pair (feature i, token i + 1) makes two entries of the encoder: the feature, and the n-gram that ends with the token.
A drafted token makes one entry, its n-gram. With a single attention layer, an entry's key and value depend on that
entry alone, so committed entries are never recomputed, and the next commit overwrites those of the draft.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe.neural import Blocks, DecoderLayer, Pending, RowSession, tensor_on
from specframe.plugin import Frontier, PairSpec, Predicted

NOTHING = -1
"""Placeholder in an n-gram for a token before the start of the text."""


class States(RowSession):
    """The decoding state of a session's rows.

    In the cache, feature i of a row is in slot 2 i and its n-gram in slot 2 i + 1. The draft's n-grams follow the
    longest row's entries, in the same slots for every row.

    Args:
        layer: the full context encoder.
        encode: returns the states of n-grams, [.., n] tokens -> [.., D].
        predict: returns the predictions below frontier nodes, given the encoder's states at their n-grams [B, F, D],
            their depths [B, F] and the last true features [B, D].
        ngram: n.
        room: maximum number of positions of a row, for which the cache has room.
        spare: number of extra slots that the cache gets when it is created or grown.
    """

    def __init__(
        self,
        layer: DecoderLayer,
        encode: Callable[[Tensor], Tensor],
        predict: Callable[[Frontier, Tensor, Tensor, Tensor], Predicted],
        ngram: int,
        slots: int,
        *,
        room: int = 0,
        spare: int = 512,
    ) -> None:
        like = next(layer.parameters())
        super().__init__(like, PairSpec(), slots, 2 * room, spare)
        self.layer = layer
        self.encode = encode
        self.predict = predict
        self.recent = like.new_full((0, ngram), NOTHING, dtype=torch.int64)  # the last tokens, ending with the root
        self.feature = like.new_zeros(0, layer.config.hidden_size)  # [B, D], the last true feature of every row

    def join(self, more: int) -> None:
        """Allocates new rows."""
        self.recent = pad(self.recent, (0, 0, 0, more), value=NOTHING)
        self.feature = pad(self.feature, (0, 0, 0, more))

    def leave(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.recent = self.recent[rows]
        self.feature = self.feature[rows]

    def seen(self, counts: list[int]) -> Tensor:
        """Returns a mask of the slots with the rows' `counts` pairs: [B, W] bool, W up to the longest row's end."""
        device = self.recent.device
        ends = 2 * tensor_on(device, counts)
        return torch.arange(2 * max(counts, default=0), device=device) < ends[:, None]

    def expand(self, frontier: Frontier) -> Predicted:
        """Returns the predictions of the level below each frontier node; expanding the root starts a draft."""
        return self.predict(frontier, *self._states(frontier), self.feature)

    def _states(self, frontier: Frontier) -> tuple[Tensor, Tensor]:
        """Returns the encoder's states at the frontier nodes' n-grams, [B, F, D], and the nodes' depths, [B, F].

        The parent of every node except the root must have been expanded before.
        """
        if frontier.tree.levels == 0:
            self.flush()
            del self.draft[1:]
            root = self.draft[0]
            return root.outputs[:, :, 0], torch.zeros_like(root.position)
        known, root = Blocks.joined(self.draft), self.draft[0]
        nodes = frontier.nodes
        width = nodes.shape[1]
        parent = frontier.tree.parent.gather(1, nodes).clamp(min=0)
        origin = known.take(parent)
        position = origin.position + 1
        own = torch.eye(width, dtype=torch.bool, device=nodes.device).expand(len(nodes), -1, -1)
        sees = torch.cat([origin.sees, own], 2)  # [B, F, S + F]
        end = self.visible.shape[1] + sees.shape[2]
        self.reserve(end)
        self.cache.aim(end - width, end)
        mask = torch.cat([self.visible[:, None].expand(-1, width, -1), sees], 2)  # [B, F, W + S + F]
        states = self.layer(self.encode(self._grams(frontier)), position, mask[:, None], self.cache)  # [B, F, D]
        self.draft.append(Blocks(nodes, states[:, :, None], (), position, sees))
        is_root = nodes == 0  # the root may be requested again together with deeper nodes
        depth = torch.where(is_root, 0, position - root.position)
        return torch.where(is_root[..., None], root.outputs[:, :, 0], states), depth

    def take(self, pending: Pending) -> Blocks:
        """Processes pending pairs: caches keys and values, after which a draft can start.

        All queries see everything cached for their row; only the last n-gram's output is used.
        """
        first, (tokens, features), fresh, starts = pending.first, pending.pairs, pending.fresh, pending.starts
        (batch, length), device = tokens.shape, tokens.device
        more, counts = tensor_on(device, [fresh, pending.counts])  # [B] each
        rows = torch.arange(batch, device=device)

        text = torch.cat([self.recent[first:], tokens], 1)  # [B, n + M]
        grams = text[:, 1:].unfold(1, self.recent.shape[1], 1)  # [B, M, n]
        if min(fresh) < max(fresh):
            inside = torch.arange(length, device=device) < more[:, None]
            grams = torch.where(inside[..., None], grams, NOTHING)
        recent = text.gather(1, more[:, None] + torch.arange(self.recent.shape[1], device=device))
        self.recent = pending.after(self.recent, recent)
        self.feature = pending.after(self.feature, features[rows, more - 1])
        entries = torch.stack([features, self.encode(grams)], 2).flatten(1, 2)  # [B, 2 M, D]

        self.reserve(2 * (max(starts) + length))
        slots = torch.arange(2 * length, device=device) + 2 * (counts - more)[:, None]  # [B, 2 M]
        self.cache.aim(slots if min(starts) < max(starts) else 2 * starts[0], 2 * max(pending.counts), first)
        mask = self.seen(pending.counts)[:, None, None].expand(-1, -1, 2 * length, -1)
        states = self.layer(entries, (slots + 1) // 2, mask, self.cache)  # [B, 2 M, D]
        return Blocks.of_root(states[rows, 2 * more - 1][:, None], (), counts)

    def _grams(self, frontier: Frontier) -> Tensor:
        """Returns the n-grams that end with each frontier node, [B, F, n]; padding's and the root's are not used."""
        tree, node = frontier.tree, frontier.nodes
        size = self.recent.shape[1]
        recent = self.recent.flip(1)  # [B, n], the root first
        offset = torch.zeros_like(node)  # number of tokens above the root that the climb has reached
        tokens = []
        for _ in range(size):
            older = recent.gather(1, offset)
            tokens.append(torch.where(node == 0, older, tree.tokens.gather(1, node)))
            offset = (offset + (node == 0)).clamp(max=size - 1)
            node = tree.parent.gather(1, node).clamp(min=0)
        drafted = (frontier.nodes > 0) & tree.valid.gather(1, frontier.nodes)
        return torch.where(drafted[..., None], torch.stack(tokens[::-1], 2), NOTHING)
