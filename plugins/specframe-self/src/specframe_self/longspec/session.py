"""Decoding state of LongSpec's drafter: the newest tokens' keys and values, and a view of the target's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specframe.neural import Blocks, Embed, FeatureSession, Pending, TextWindow, tensor_on
from specframe_self.longspec.network import LongNetwork, SeenKeys

if TYPE_CHECKING:
    from specframe.plugin import CommittedMemory, Frontier, Predicted


class LongSession(FeatureSession):
    """Decoding state of a session's rows: entries of the newest tokens, and drafts that see the target's memory.

    An entry's keys and values depend on its token alone. Committed tokens are therefore cached without a pass through
    the block, and the root is the first node of a draft. The target's keys and values are read in place.

    Args:
        network: the drafter's.
        embed: the target's token embedding, [..] -> [.., D].
        memory: the target's keys and values of the committed tokens.
        window: the drafter's own entries that drafts see.
        slots: maximum number of rows.
        room: maximum number of positions of a row.
    """

    network: Any

    def __init__(
        self,
        network: LongNetwork,
        embed: Embed,
        memory: Callable[[], CommittedMemory],
        window: TextWindow,
        slots: int,
        room: int,
    ) -> None:
        block: Any = network  # it provides what a session of one layer uses, and no masks
        super().__init__(block, embed, slots, room=room)
        self.limit(window)
        self._memory = memory
        self._seen: tuple[Tensor, Tensor, Tensor] | None = None  # keys and values [B, key heads, S, d], counts [B]

    def prepare(self, entries: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Returns the tokens' embeddings, [B, M, D]."""
        return (self.embed(entries[0]),)

    def take(self, pending: Pending) -> Blocks:
        """Caches the keys and values of pending tokens; the root's outputs are computed when a draft begins."""
        x = pending.pairs[0]
        self.cache.update(*self.network.remember(x, self.aim_after(pending, x.shape[1])), 0)
        return Blocks.of_root(torch.zeros_like(x[:, :1]), (), tensor_on(x.device, pending.counts))

    def expand(self, frontier: Frontier) -> Predicted:
        """Returns the predictions below each frontier node; the root, which starts a draft, sees its own entry."""
        if frontier.tree.levels == 0:
            self.flush()
            del self.draft[1:]
            ends = tensor_on(frontier.nodes.device, self.counts)[:, None] - 1  # [B, 1]
            root = self.embed(frontier.tree.tokens[:, :1])
            self._look(root.dtype)
            outputs = self._along(root, ends, self.visible[:, None], ends)
            self.draft[0] = replace(self.draft[0], outputs=outputs[:, None])
        return super().expand(frontier)

    def _look(self, dtype: torch.dtype) -> None:
        """Refreshes the view of the target's committed keys and values."""
        memory = self._memory()
        most = max(memory.counts)
        keys, values = (part[-1][:, :, :most].to(dtype) for part in (memory.keys, memory.values))
        self._seen = keys, values, memory.count

    def _pairs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Returns the tokens' embeddings; nothing is fed back."""
        return self.embed(tokens)

    def _ask(self, queries: Any, slots: int | Tensor, first: int = 0) -> Tensor:
        """Returns the block's outputs at draft nodes, [B, T, D]."""
        return self._along(queries.inputs, queries.positions, queries.mask, slots)

    def _along(self, x: Tensor, positions: Tensor, mask: Tensor, slots: int | Tensor) -> Tensor:
        """Returns the block's outputs [B, T, D] of entries at these positions of the window, written to these slots."""
        assert self._seen is not None
        width = mask.shape[2]
        self.reserve(width)
        self.cache.aim(slots, width)
        keys, values = self.cache.update(*self.network.remember(x, positions), 0)
        memory, stored, count = self._seen
        after = positions - tensor_on(x.device, self.counts)[:, None] + 1  # [B, T], 0 at the root
        verified = torch.arange(memory.shape[2], device=x.device) < count[:, None]  # [B, S]
        seen = verified[:, None].expand(-1, x.shape[1], -1)
        outputs: Tensor = self.network(
            x, SeenKeys(keys, values, mask, positions), SeenKeys(memory, stored, seen, count[:, None] + after)
        )
        return outputs
