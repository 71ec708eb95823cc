"""The rows of a drafter's session: their cached pairs, the pairs committed since, and the draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from specframe.kernel.types import Committed, PairSpec
from specframe.neural.blocks import Blocks
from specframe.neural.cache import SlotCache
from specframe.neural.features import Pending, PendingCommit, by_row
from specframe.neural.masks import TextWindow
from specframe.neural.transfer import tensor_on

MOST, SPARE = 16384, 256
"""The most entries, padded to the longest row, that wait while no draft is requested; and how many may be padding, in
addition to three per real entry."""


class WindowEntries:
    """The cached entries of rows with a window, kept to be rewritten, and each row's total number of entries."""

    def __init__(self, window: TextWindow) -> None:
        self.window = window
        self.totals: list[int] = []
        self.instead: Pending | None = None
        """Entries written in place of the pairs that were pending, until they are noted."""
        self._values: Tensor | None = None  # [B, most, P]

    def cached(self, first: int, fresh: Sequence[int]) -> list[int]:
        """Returns the number of cached entries of the rows from `first` on after `fresh` more entries each."""
        return [self.window.cached(had + new) for had, new in zip(self.totals[first:], fresh, strict=True)]

    def expanded(self, pending: Pending, values: Tensor) -> Pending:
        """The entries to write for new ones [B, M, P]; for a row that drops some, all that it keeps."""
        dropped = [
            have + new - cached
            for have, new, cached in zip(
                pending.starts, pending.fresh, self.cached(pending.first, pending.fresh), strict=True
            )
        ]
        if not any(dropped):
            return replace(pending, pairs=(values, *pending.pairs[1:]))
        starts, parts, sinks = list(pending.starts), [], self.window.sinks
        for row, (less, new) in enumerate(zip(dropped, pending.fresh, strict=True)):
            part = values[row, :new]
            if less:
                if starts[row]:
                    assert self._values is not None
                    part = torch.cat([self._values[pending.first + row, : starts[row]], part])
                part, starts[row] = torch.cat([part[:sinks], part[sinks + less :]]), 0
            parts.append(part)
        fresh = [len(part) for part in parts]
        cached = [start + new for start, new in zip(starts, fresh, strict=True)]
        return Pending(pending.first, (pad_sequence(parts, batch_first=True),), fresh, starts, cached)

    def write(self, pending: Pending) -> None:
        """Records written entries."""
        pending, self.instead = self.instead or pending, None
        values = pending.pairs[0]
        if self._values is None:
            self._values = values.new_zeros(0, self.window.most, values.shape[-1])
        self._values = self._of_all(self._values)
        for row, (start, new) in enumerate(zip(pending.starts, pending.fresh, strict=True)):
            self._values[pending.first + row, start : start + new] = values[row, :new]

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._values = None if self._values is None else self._of_all(self._values)[rows]
        self.totals = [self.totals[row] for row in rows.tolist()]

    def _of_all(self, values: Tensor) -> Tensor:
        """The values, padded for rows that have none yet."""
        return pad(values, (0, 0, 0, 0, 0, len(self.totals) - len(values)))


class RowSession:
    """Common base of sessions over a `SlotCache`: rows that join, commit at their own pace, and leave.

    Of newly committed pairs it keeps the tokens [B, M] and their concatenated features [B, M, A D]. A drafter's session
    defines how they become a draft's entries (`prepare`), how these are cached (`take`), the slots that then hold them
    (`seen`), and its other state of a row (`join`, `leave`).

    Args:
        like: a tensor on the drafter's device.
        spec: the features of a pair.
        slots: the most rows.
        room: the most positions of a row, for which the cache has room.
        spare: number of spare slots that the cache gets when it is made or grown.
        layers: number of layers whose keys and values are cached.
    """

    def __init__(self, like: Tensor, spec: PairSpec, slots: int, room: int, spare: int, layers: int = 1) -> None:
        self.room, self.spare, self.spec = room, spare, spec
        self.counts: list[int] = []  # entries of each row that are cached
        self.cache = SlotCache(layers, 0, slots)
        self._visible: Tensor | None = like.new_zeros(0, 0, dtype=torch.bool)
        self._draft: list[Blocks] | Callable[[], Blocks] = []  # or a function that makes the root on demand
        self.windowed: WindowEntries | None = None
        """The entries that a window keeps; None without a window."""
        self._commits: list[PendingCommit] = []
        self._waiting: list[int] = []  # entries of each row in these commits; only the first rows may have none
        self._asked, self._idle = False, False  # whether a draft was requested since the last cycle; whether none was

    @property
    def draft(self) -> list[Blocks]:
        """The root's blocks, and the expansions below it; a native draft's root is made only if PyTorch reads it."""
        if callable(self._draft):
            self._draft = [self._draft()]
        return self._draft

    @draft.setter
    def draft(self, blocks: list[Blocks]) -> None:
        self._draft = blocks

    @property
    def visible(self) -> Tensor:
        """The slots that hold cached pairs, [B, W] bool."""
        if self._visible is None:
            self._visible = self.seen(self.counts)
        return self._visible

    def pending_commit(self, rows: range, committed: Committed) -> PendingCommit:
        """A commit to these rows, to be read by the next draft.

        By default its entries are the pairs. A session with fewer entries than pairs also keeps their positions, since
        an entry's index is then no longer its position.
        """
        return PendingCommit(rows, committed.counts, committed)

    def prepare(self, entries: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Converts kept entries into a draft's inputs, [B, M, ..] each; by default unchanged."""
        return entries

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
        """Keeps newly committed pairs; rows that come with a prompt are new, and follow the others.

        They wait for the next draft. If a tree policy drafts nothing for some cycles, one forward pass then reads all
        that was committed meanwhile, prompts of new rows included, and nothing of rows that have left.
        """
        first = 0 if committed.prompt is None else len(self.counts)
        commit = self.pending_commit(range(first, first + len(committed.tokens)), committed)
        waiting, more = self._waiting, [0] * first + commit.fresh
        if committed.prompt is None:
            self._idle, self._asked = not self._asked, False
        else:
            waiting = waiting + [0] * len(commit.fresh)
        total = [have + new for have, new in zip(waiting, more, strict=True)]
        if not self._idle or len(total) * max(total) > min(MOST, 4 * sum(total) + SPARE):
            self.flush()
            self._asked, total = False, more
        if committed.prompt is not None:
            self.counts += [0] * len(commit.fresh)
            if self.windowed is not None:
                self.windowed.totals += [0] * len(commit.fresh)
            self._visible = None
            self.join(len(commit.fresh))
        self._waiting = total
        self._commits.append(commit)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        chosen = rows.tolist()
        if 0 in self._waiting:
            self.flush()
        places = {row: place for place, row in enumerate(chosen)}
        self._commits = [moved for commit in self._commits if (moved := commit.moved(places)) is not None]
        self._waiting = [self._waiting[row] for row in chosen]
        self.counts = [self.counts[row] for row in chosen]
        if self.windowed is not None:
            self.windowed.keep(rows)
        self.cache.keep(rows)
        self._visible = None
        self.draft = [] if self._commits else [root.keep(rows) for root in self.draft[:1]]
        self.leave(rows)

    def flush(self) -> None:
        """Caches the pending pairs, so that a draft can start at the root of every row."""
        if (pending := self.pending) is not None:
            root = self.take(pending)
            self.flushed(pending, lambda: root)

    @property
    def waiting(self) -> int:
        """The most pending entries of a row."""
        return max(self._waiting, default=0)

    @property
    def pending(self) -> Pending | None:
        """The entries of pending commits, if there are any."""
        if (pending := self.pending_shape) is None:
            return None
        pending = replace(pending, pairs=self.prepare(by_row(self._commits, pending.fresh, self.spec)))
        return pending if self.windowed is None else self.windowed_pending(self.windowed, pending)

    @property
    def pending_shape(self) -> Pending | None:
        """The rows and entry counts of pending commits, without the entries."""
        if not self._commits:
            return None
        first = self._waiting.count(0)
        starts, fresh = self.counts[first:], self._waiting[first:]
        return Pending(first, (), fresh, starts, [have + more for have, more in zip(starts, fresh, strict=True)])

    @property
    def single_commit(self) -> Committed | None:
        """The only pending commit, if it can be used unchanged."""
        oldest, first = self._commits[0], self._waiting.count(0)
        complete = len(self._commits) == 1 and list(oldest.rows) == list(range(first, len(self.counts)))
        return oldest.committed if complete and oldest.entries is None and self.windowed is None else None

    def windowed_pending(self, entries: WindowEntries, pending: Pending) -> Pending:
        """The pending pairs to write within a window; for a row that drops some, all that it keeps."""
        return entries.expanded(pending, pending.pairs[0])

    def flushed(self, pending: Pending, root: Callable[[], Blocks]) -> None:
        """Records that pending pairs were cached, given a function that makes their rows' root."""
        if self.windowed is not None:
            self.windowed.write(pending)
            self.windowed.totals = [had + new for had, new in zip(self.windowed.totals, self._waiting, strict=True)]
        self._commits, self._waiting = [], [0] * len(self.counts)
        self._visible, self._asked = None, True
        self.counts[pending.first :] = pending.counts
        self._draft = [self.draft[0].stack(root())] if pending.first else root

    def aim_after(self, pending: Pending, length: int, width: int | None = None) -> Tensor:
        """Aims the next pass at the slots after the pending rows' entries, and returns these slots, [B, length].

        The pass sees the slots below `width`; None: up to the last of these.
        """
        starts, end, device = pending.starts, max(pending.starts) + length, pending.pairs[0].device
        even = min(starts) == max(starts)
        slots = torch.arange(length, device=device).expand(len(starts), -1)
        slots = slots + (starts[0] if even else tensor_on(device, starts)[:, None])
        self.reserve(end)
        self.cache.aim(starts[0] if even else slots, end if width is None else width, pending.first)
        return slots

    def reserve(self, slots: int) -> None:
        """Grows the cache to at least this number of slots."""
        if slots > self.cache.capacity:
            self.cache.grow(max(2 * self.cache.capacity, max(slots, self.room) + self.spare))
