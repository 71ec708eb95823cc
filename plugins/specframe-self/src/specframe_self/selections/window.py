"""KV selections: the first tokens of a text and its newest ones."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe import InputError
from specframe.plugin import ChosenSlots, Committed, CommittedMemory


class SinkWindow:
    """The first tokens of a row and its newest ones (StreamingLLM, Xiao et al. 2024, arXiv 2309.17453, Section 3.2).

    The first tokens absorb attention that has no other target, and are always kept. MagicDec's drafts use this
    selection (Sadhukhan et al. 2025, arXiv 2408.11049, Section 4.2). A distant token that an answer copies is not seen.

    Options:
        sinks: number of first tokens that are seen
        recent: number of newest tokens that are seen
    """

    per_head = queries = False

    def __init__(self, *, sinks: int = 4, recent: int = 508) -> None:
        if sinks < 0 or recent < 1:
            raise InputError(f"window: sinks is at least 0 and recent at least 1, not {sinks} and {recent}")
        self.sinks = sinks
        self.budget = sinks + recent

    def smaller(self) -> SinkWindow:
        """Returns a copy of at most one sink and two slots, for targets of a few tokens."""
        return SinkWindow(sinks=min(self.sinks, 1), recent=2 - min(self.sinks, 1))

    def open(self, slots: int, room: int) -> None:
        """Does nothing: there is no state to clear."""

    def commit(self, committed: Committed, memory: CommittedMemory) -> None:
        """Does nothing: the slots depend only on the length of the text."""

    def choose(self, memory: CommittedMemory) -> ChosenSlots:
        """Returns the first slots of every row, and its last ones."""
        most = min(self.budget, max(memory.counts))
        place = torch.arange(most, device=memory.count.device)
        shift = (memory.count - most).clamp(min=0)[:, None]  # [B, 1]
        slots = torch.where(place < self.sinks, place, place + shift)  # [B, K]
        slots = slots.masked_fill(place >= memory.count[:, None], -1)
        return ChosenSlots(slots[None, :, None])

    def keep(self, rows: Tensor) -> None:
        """Does nothing: there is no state to keep."""
