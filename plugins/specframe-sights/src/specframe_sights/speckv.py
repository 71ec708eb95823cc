"""Sights: the tokens that the end of the prompt and the likely answer look at."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe import InputError
from specframe.plugin import ChosenSlots, Committed, CommittedMemory
from specframe_sights.ranking import PromptRanking
from specframe_sights.snapkv import shares_of


class SpecKV:
    """For each head of keys the tokens that a prompt's last queries or a likely answer's attend to most, chosen once.

    The answer is the drafter's own: its most probable tokens behind the prompt, on what the prompt's queries chose. So
    it follows from the prompt, and no draft is seen that the choice is used for. A token's score is the largest
    attention to it, of these queries and of the heads that share the keys, then the largest among its `pool` neighbours
    (SpecKV in Draft-based Approximate Inference, Galim et al. 2025, arXiv 2506.08373). The paper leaves all other keys
    and values out of the target; here drafts alone do, so that the target's distribution is kept.

    Options:
        budget: the most tokens that are seen
        lookahead: how many tokens of the likely answer vote, at most; as many as the session has room for
        window: how many of the prompt's last queries vote, 64 at most; these tokens are seen, too
        pool: how many neighbours share a score, an odd number
    """

    per_head = queries = True

    def __init__(self, *, budget: int = 512, lookahead: int = 32, window: int = 32, pool: int = 7) -> None:
        if lookahead < 1:
            raise InputError(f"speckv: the lookahead is at least 1 token, not {lookahead}; without, it is `snapkv`")
        self.budget, self.lookahead, self.window, self.pool = budget, lookahead, window, pool
        self._ranking = PromptRanking("speckv", budget, window, pool)
        self._votes = torch.zeros(0)  # [layers, R, heads of keys, S], of new prompts

    def smaller(self) -> SpecKV:
        """The same of three tokens, one of them the prompt's last, and one token ahead."""
        return SpecKV(budget=3, lookahead=1, window=1, pool=1)

    def open(self, slots: int, room: int) -> None:
        """Begins a session of at most `slots` rows; forgets earlier ones."""
        self._ranking.open(slots)

    def commit(self, committed: Committed, memory: CommittedMemory) -> None:
        """Ranks the tokens of new prompts by their own queries; otherwise does nothing."""
        if committed.prompt is not None:
            first = len(memory.counts) - len(committed.count)
            shares = shares_of(memory, first, memory.queries[..., -self.window :, :])
            self._votes = torch.stack([layer.amax((2, 3)) for layer in shares])
            self._ranking.put(self._votes, memory, first)

    def look_ahead(self, queries: Tensor, memory: CommittedMemory) -> None:
        """Ranks the tokens of new prompts anew, by the queries [layers, R, heads, T, D] of the likely answers, too."""
        first = len(memory.counts) - queries.shape[1]
        shares = shares_of(memory, first, queries, ahead=queries.shape[3])
        self._votes = torch.maximum(self._votes, torch.stack([layer.amax((2, 3)) for layer in shares]))
        self._ranking.put(self._votes, memory, first)

    def choose(self, memory: CommittedMemory) -> ChosenSlots:
        """The slots of the tokens ranked best, of the window, and of the answer."""
        return self._ranking.choose(memory)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._ranking.keep(rows)
