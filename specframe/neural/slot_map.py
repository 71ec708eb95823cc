"""The slot map of a session: the slots of a memory that hold each row's entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Self

import torch
from torch import Tensor

from specframe.kernel.errors import CompositionError
from specframe.kernel.layers import ChosenSlots
from specframe.kernel.types import Committed, TokenTree
from specframe.native.visibility import Listed, Mask, Tree
from specframe.neural.cache import SlotCache
from specframe.neural.transfer import from_host


class SlotMap:
    """Slots of a session's rows: row b's committed entries fill the slots 0 .. counts[b] - 1 of its row of a memory.

    A draft's entries are written at the same slots in every row, after the longest one: a slice, not a scatter.
    Shorter rows get a gap that no query sees; it closes when the accepted path is moved down.

    Args:
        memory: keys and values, with a row for each of the session's slots.
        rooted: True if a draft's root is the last committed entry, as in a drafting model; False if it is the draft's
            first entry, as in a target, which has not processed it yet.
        device: the device of the counts.
    """

    def __init__(self, memory: SlotCache, *, rooted: bool, device: torch.device | None = None) -> None:
        self.memory = memory
        self.counts: list[int] = []
        """Committed entries of each row, on the host."""
        self._count: Tensor | None = torch.zeros(0, dtype=torch.int64, device=device)
        self.offset: Tensor | None = None
        """Position of each row's next token minus its number of entries, [B] int64; None: 0 for all."""
        self._rooted = rooted
        self._queries: Tensor | None = None
        self._taken = 0  # further occupied slots in every row: those of the entries that `before` leaves out

    @property
    def count(self) -> Tensor:
        """Committed entries of each row, [B] int64."""
        if self._count is None:
            self._count = from_host(self.counts)
        return self._count

    @property
    def on_host(self) -> bool:
        """True if its tensors are on a CPU."""
        return self._count is None or self._count.is_cpu

    @property
    def base(self) -> int:
        """The first slot that holds no row's committed entries."""
        return max(self.counts, default=0) + self._taken

    @property
    def origin(self) -> int:
        """The slot of a draft's node 0, in the longest row; node i stands i slots after it."""
        return self.base - self._rooted

    @property
    def even(self) -> bool:
        """True if all rows fill the slots below `base`."""
        return min(self.counts, default=0) == self.base

    @property
    def keys(self) -> Tensor:
        """All layers' keys, [layers, B, H, S, D]; a row's first `count` slots are committed."""
        return self.memory.every[0::2, : len(self.counts)]

    @property
    def values(self) -> Tensor:
        """All layers' values, [layers, B, H, S, D]."""
        return self.memory.every[1::2, : len(self.counts)]

    @property
    def queries(self) -> Tensor:
        """The scaled queries of the newly committed tokens, [layers, R, heads, T, D]: see `CommittedMemory`."""
        if self._queries is None:
            raise CompositionError(
                "a KV selection of this kind needs queries, which the target's attention does not show"
            )
        size = self.keys.shape[-1]
        return self._queries.unflatten(-1, (-1, size)).transpose(2, 3).to(self.keys.dtype)

    @property
    def shows(self) -> bool:
        """True if there are queries."""
        return self._queries is not None

    def show(self, queries: Tensor | None) -> None:
        """Keeps the queries [layers, R, T, heads * D] of the tokens being committed, the newest last."""
        self._queries = queries

    def copy(self, row: int, count: int) -> Tensor:
        """Returns a copy of a row's first entries: see `CommittedMemory`."""
        if not self.memory.rewindable:
            raise CompositionError("recurrent layers keep one state for all committed tokens, none for their beginning")
        if self._queries is not None:
            raise CompositionError(
                "a KV selection reads the queries of a prompt's end, which are not kept with its beginning"
            )
        return self.memory.every[:, row, :, :count].clone()

    def join(self, count: Tensor, counts: Sequence[int], offset: Tensor | None = None) -> None:
        """Adds rows with these counts after the others, and the offsets of their positions [A], 0 by default."""
        if offset is not None or self.offset is not None:
            before = torch.zeros_like(self.count) if self.offset is None else self.offset
            self.offset = torch.cat([before, torch.zeros_like(count) if offset is None else offset])
        self._count = torch.cat([self.count.to(count.device), count])  # an empty map takes the device of its first rows
        self.counts = [*self.counts, *counts]

    def advance(self, committed: Committed) -> None:
        """Counts a commit's entries, one for each token."""
        self.counts = [have + new for have, new in zip(self.counts, committed.counts, strict=True)]
        self._count = None if self.on_host else self.count + committed.count  # made on demand, or at once

    def fill(self, count: Tensor, counts: Sequence[int]) -> None:
        """Sets the rows' numbers of entries, [B] on the device and on the host."""
        self._count, self.counts = count, list(counts)

    def rewind(self, count: Tensor, counts: Sequence[int]) -> None:
        """Forgets all but the first `count` entries of each row, [B] on the device and on the host."""
        self._count = torch.minimum(self.count, count)
        self.counts = [min(pair) for pair in zip(self.counts, counts, strict=True)]

    def shorten(self, first: int, slots: Tensor) -> None:
        """Drops all entries of the rows from `first` on but those in the slots [layers or 1, R, H or 1, K], ascending.

        Rows with fewer slots are padded with -1. Positions stay those of the text.
        """
        self.memory.choose(first, slots.clamp(min=0))
        counts = (slots[0, :, 0] >= 0).sum(-1)
        offset = torch.zeros_like(self.count) if self.offset is None else self.offset
        self.offset = torch.cat([offset[:first], offset[first:] + self.count[first:] - counts])
        self.fill(torch.cat([self.count[:first], counts]), [*self.counts[:first], *counts.tolist()])

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.memory.keep(rows, self.base)
        self._count = self.count[rows]
        self.offset = None if self.offset is None else self.offset[rows]
        self.counts = [self.counts[row] for row in rows.tolist()]

    def places(self, positions: Tensor) -> Tensor | None:
        """Converts positions [B, T] counted in entries to those passed to the model; None: they are the same."""
        return None if self.offset is None else positions + self.offset[:, None]

    def before(self, entries: int) -> Self:
        """The rows without their last `entries` entries, on the same memory: nodes are written after all entries.

        A row with fewer entries sees none. Raises CompositionError if entries cannot be dropped.
        """
        if not self.memory.rewindable:
            raise CompositionError("recurrent layers keep one state for all committed tokens: none can be dropped")
        earlier = copy(self)
        earlier._count = self.count - entries
        earlier.counts = [have - entries for have in self.counts]
        earlier._taken = self._taken + entries
        return earlier

    def move(self, paths: Sequence[Sequence[int]], nodes: Callable[[], Tensor]) -> None:
        """Moves the entries of accepted paths, the root first, after the committed ones.

        `nodes` makes the paths' tensor [B, A] on demand, with arbitrary nodes after a row's last. Except on a CPU, a
        row with a shorter path also moves entries past its end, which no query sees and the next tree overwrites.
        """
        self.memory.commit(paths)
        base, width = self.base, max(map(len, paths))
        start = min(_settled(path, width) if have == base else 0 for path, have in zip(paths, self.counts, strict=True))
        if start == width:
            return
        if self.on_host:  # where the paths are
            pairs = [*zip(paths, self.counts, strict=True)]
            sources = [[self.origin + node for node in path[start:]] for path, _ in pairs]
            self.memory.move(sources, [range(have + start, have + len(path)) for path, have in pairs])
            return
        if self.even:
            first: int | Tensor = base + start
        else:
            first = self.count[:, None] + torch.arange(start, width, device=self.count.device)
        self.memory.compact(self.origin + nodes()[:, start:width], first)

    def tree(self, tree: TokenTree) -> Tree:
        """The visibility of a whole tree's nodes."""
        return Tree(tree.ancestors, self.count, self.base, self.even)

    def nodes(self, tree: TokenTree, nodes: Tensor, positions: Tensor) -> Mask:
        """The visibility of nodes [B, F] of a tree with `positions` [B, N]: the committed slots and their paths."""
        count, origin = tree.tokens.shape[1], self.origin
        path = tree.ancestors.gather(1, nodes[..., None].expand(-1, -1, count))  # [B, F, N]
        if self._rooted:  # node 0 stands among the committed entries; its slot is that of the longest rows' roots
            path[:, :, 0] = (self.count == self.base)[:, None]
        committed = torch.arange(origin, device=nodes.device) < self.count[:, None]  # [B, origin]
        visible = torch.cat([committed[:, None].expand(-1, path.shape[1], -1), path], 2)
        return Mask(visible, origin + nodes, positions, origin)

    def chosen(self, tree: TokenTree, nodes: Tensor, slots: ChosenSlots) -> Listed:
        """The visibility of nodes [B, F] of a tree whose root is not committed: the chosen slots and their paths.

        Their entries are written at the slots of `nodes`, and verification overwrites them.
        """
        path = tree.ancestors.gather(1, nodes[..., None].expand(-1, -1, tree.tokens.shape[1]))  # [B, F, N]
        return Listed(slots.slots, path, self.base + nodes, self.base, slots.upper)


def _settled(path: Sequence[int], width: int) -> int:
    """Returns the number of leading path nodes that are already in place; `width` if all are."""
    return next((step for step, node in enumerate(path) if node != step), width)
