"""KV selections: all tokens, with half of their bits."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.plugin import ChosenSlots, Committed, CommittedMemory
from specframe_self.selections.window import SinkWindow


class UpperHalf:
    """All committed tokens, by the upper 4 of 8 bits (QuantSpec, Tiwari et al. 2025, arXiv 2502.10424).

    The target keeps keys and values in split int8 (`cache: int8`); verification reads both halves, a draft only the
    upper one. The newest tokens are unrounded for both.
    """

    budget = 0
    """0 stands for any number of tokens."""
    per_head = queries = False
    upper = True

    def smaller(self) -> SinkWindow:
        """Returns a KV selection of two slots, for targets of a few tokens, none of which are rounded."""
        return SinkWindow(sinks=1, recent=1)

    def open(self, slots: int, room: int) -> None:
        """Does nothing: there is no state to clear."""

    def commit(self, committed: Committed, memory: CommittedMemory) -> None:
        """Does nothing: the slots depend only on the length of the text."""

    def choose(self, memory: CommittedMemory) -> ChosenSlots:
        """Returns all slots of every row."""
        place = torch.arange(max(memory.counts), device=memory.count.device)
        slots = place.expand(len(memory.counts), -1).masked_fill(place >= memory.count[:, None], -1)
        return ChosenSlots(slots[None, :, None], upper=True)

    def keep(self, rows: Tensor) -> None:
        """Does nothing: there is no state to keep."""
