"""The rows of a drafter's session: their cached pairs, the pairs committed since, and the draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.kernel.types import Committed
from specframe.neural.blocks import Blocks
from specframe.neural.cache import SlotCache
from specframe.neural.transfer import tensor_on

MOST = 64
"""Largest number of pairs of a row that wait for a draft, prompts aside."""


@dataclass(frozen=True)
class Pending:
    """Newly committed pairs of the last B rows, which the next draft's first forward takes in."""

    first: int  # rows before this one have nothing pending
    pairs: tuple[Tensor, ...]  # [B, M, ..] each, as entries
    fresh: list[int]  # how many of the M are a row's
    starts: list[int]  # how many each row had before
    held: list[int]  # and has with them

    def behind(self, others: Tensor, own: Tensor, dim: int = 0) -> Tensor:
        """Returns the state of all rows, given that of the others and that of these rows now."""
        return own if self.first == 0 else torch.cat([others.narrow(dim, 0, self.first), own], dim)


class RowSession:
    """Common base of sessions over a `SlotCache`: rows that join, commit at their own pace, and leave.

    A drafter's session defines the entries that it keeps of newly committed pairs (`pairs`), how it takes them in
    (`take`), the slots that then hold them (`seen`), and its other state of a row (`join`, `leave`).

    Args:
        like: a tensor on the drafter's device.
        slots: how many rows there will be, at most.
        room: how many positions a row will take, at most; the cache has room for them.
        spare: how many slots more than it needs the cache gets when it is made or grown.
        layers: how many layers' keys and values it caches.
    """

    def __init__(self, like: Tensor, slots: int, room: int, spare: int, layers: int = 1) -> None:
        self.room = room
        self.spare = spare
        self.counts: list[int] = []  # entries of each row that are cached
        self.cache = SlotCache(layers, 0, slots)
        self._visible: Tensor | None = like.new_zeros(0, 0, dtype=torch.bool)
        self.draft: list[Blocks] = []  # the root's, and the expansions below it
        self._pending: tuple[int, tuple[Tensor, ...], list[int]] | None = None

    @property
    def visible(self) -> Tensor:
        """The slots that hold cached pairs, [B, W] bool."""
        if self._visible is None:
            self._visible = self.seen(self.counts)
        return self._visible

    def pairs(self, tokens: Tensor, features: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """Returns the entries kept of newly committed pairs until they are taken in, [B, M, ..] each."""
        raise NotImplementedError

    def entries(
        self, pairs: tuple[Tensor, ...], committed: Committed, fresh: list[int]
    ) -> tuple[tuple[Tensor, ...], list[int]]:
        """Returns the entries of newly committed pairs, [B, M, ..] each, and how many each row has of them.

        By default they are the pairs, `fresh` a row. A session that has fewer entries than pairs keeps their positions
        with them, since an entry's number is then no longer its position.
        """
        return pairs, fresh

    def take(self, pending: Pending) -> Blocks:
        """Caches pending pairs, advances the state of their rows, and returns their rows' root."""
        raise NotImplementedError

    def seen(self, counts: list[int]) -> Tensor:
        """Mask of the slots that hold the rows' `counts` pairs: [B, W] bool, W up to the longest row's end."""
        raise NotImplementedError

    def join(self, more: int) -> None:
        """Makes room for new rows in the remaining state."""

    def leave(self, rows: Tensor) -> None:
        """Keeps these rows of the remaining state, int64 [R], in this order."""

    def commit(self, committed: Committed) -> None:
        """Stashes newly committed pairs; rows that come with a prompt are new, and stand behind the others.

        They wait for the next draft, together with those stashed before: where a tree policy drafts nothing for some
        cycles, there is one forward for all of them.
        """
        fresh = committed.count.tolist() if committed.counts is None else list(committed.counts)
        longest = max(fresh)
        features = {tap: values[:, :longest] for tap, values in committed.features.items()}
        pairs, fresh = self.entries(self.pairs(committed.tokens[:, :longest], features), committed, fresh)
        first = 0
        if self._pending is not None and committed.prompt is None and self._pending[0] == 0:
            pairs, fresh = _behind(self._pending[1], self._pending[2], pairs, fresh)
            self._pending = None
        self.settle()
        if committed.prompt is not None:
            first = len(self.counts)
            self.counts += [0] * len(fresh)
            self._visible = None
            self.join(len(fresh))
        self._pending = first, pairs, fresh
        if max(fresh) > MOST and committed.prompt is None:
            self.settle()

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        chosen = rows.tolist()
        if self._pending is not None and (self._pending[0] or not chosen):
            self.settle()
        if self._pending is not None:
            _, pairs, fresh = self._pending
            fresh = [fresh[row] for row in chosen]
            self._pending = 0, tuple(part[rows, : max(fresh)] for part in pairs), fresh
        self.counts = [self.counts[row] for row in chosen]
        self.cache.keep(rows)
        self._visible = None
        self.draft = [root.keep(rows) for root in self.draft[:1]]
        self.leave(rows)

    def settle(self) -> None:
        """Takes in the pending pairs; then a draft can start at the root of every row."""
        if (pending := self.pending) is not None:
            self.settle_by(pending, self.take(pending))

    @property
    def pending(self) -> Pending | None:
        """The pairs that are to be taken in, if there are any."""
        if self._pending is None:
            return None
        first, pairs, fresh = self._pending
        starts = self.counts[first:]
        return Pending(first, pairs, fresh, starts, [have + more for have, more in zip(starts, fresh, strict=True)])

    def settle_by(self, pending: Pending, root: Blocks) -> None:
        """Takes note that pending pairs were taken in, given their rows' root."""
        self._pending, self._visible = None, None
        self.counts[pending.first :] = pending.held
        self.draft = [self.draft[0].above(root) if pending.first else root]

    def reserve(self, slots: int) -> None:
        """Sees to it that the cache has this many slots."""
        if slots > self.cache.capacity:
            self.cache.grow(max(2 * self.cache.capacity, max(slots, self.room) + self.spare))


def _behind(
    pairs: tuple[Tensor, ...], counts: list[int], others: tuple[Tensor, ...], more: list[int]
) -> tuple[tuple[Tensor, ...], list[int]]:
    """Pairs [B, M, ..], `count` of each row, with others [B, N, ..] behind them; and the rows' new counts."""
    total = [have + new for have, new in zip(counts, more, strict=True)]
    if min(counts) == max(counts):
        return tuple(torch.cat([old[:, : counts[0]], new], 1) for old, new in zip(pairs, others, strict=True)), total
    device = pairs[0].device
    rows = torch.arange(len(counts), device=device)[:, None]
    places = tensor_on(device, counts)[:, None] + torch.arange(others[0].shape[1], device=device)  # [B, N]
    joined = []
    for old, new in zip(pairs, others, strict=True):
        wide = torch.cat([old[:, : max(counts)], torch.zeros_like(new)], 1)
        wide[rows, places] = new
        joined.append(wide[:, : max(total)])
    return tuple(joined), total
