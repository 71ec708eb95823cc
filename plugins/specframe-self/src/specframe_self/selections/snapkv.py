"""KV selections: the tokens to which the end of the prompt attends."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from specframe.plugin import ChosenSlots, Committed, CommittedMemory
from specframe_self.selections.ranking import PromptRanking


class SnapKV:
    """For each key head the tokens that a prompt's last queries attend to most, chosen once for the whole answer.

    A token's score is the attention of the prompt's last `window` tokens to it, summed over these and over the heads
    that share the keys; the score is then the maximum over its `pool` neighbours (SnapKV, Li et al. 2024, arXiv
    2404.14469, Section 4; used for drafts in MagicDec). The window itself and the answer's tokens are seen, too; as the
    answer grows, they replace the tokens ranked last, up to all but one.

    Options:
        budget: maximum number of tokens that are seen
        window: number of the prompt's last queries that count, at most 64
        pool: number of neighbours that share a score, an odd number
    """

    per_head = queries = True

    def __init__(self, *, budget: int = 512, window: int = 32, pool: int = 7) -> None:
        self.budget, self.window, self.pool = budget, window, pool
        self._ranking = PromptRanking("snapkv", budget, window, pool)

    def smaller(self) -> SnapKV:
        """Returns a copy of three tokens, one of them the prompt's last."""
        return SnapKV(budget=3, window=1, pool=1)

    def open(self, slots: int, room: int) -> None:
        """Begins a session of at most `slots` rows; drops earlier ones."""
        self._ranking.open(slots)

    def commit(self, committed: Committed, memory: CommittedMemory) -> None:
        """Ranks the tokens of new prompts; otherwise does nothing."""
        if committed.prompt is None:
            return
        first = len(memory.counts) - len(committed.count)
        self._ranking.put(votes_of(memory, first, self.window), memory, first)

    def choose(self, memory: CommittedMemory) -> ChosenSlots:
        """Returns the slots of the best-ranked tokens, of the window, and of the answer."""
        return self._ranking.choose(memory)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._ranking.keep(rows)


def votes_of(memory: CommittedMemory, first: int, most: int) -> Tensor:
    """Returns the attention of the last queries, at most `most`, to the committed tokens: [layers, R, heads, S].

    It is summed over the queries of each of the rows from `first` on, and over the heads that share a key head.
    """
    return torch.stack([shares.sum((2, 3)) for shares in shares_of(memory, first, memory.queries[..., -most:, :])])


def shares_of(memory: CommittedMemory, first: int, queries: Tensor, lookahead: int = 0) -> Iterator[Tensor]:
    """Yields for each layer the attention of queries [layers, R, heads, T, D] to the rows from `first` on.

    The queries are those of the last T tokens, of which `lookahead` follow the committed ones. Each sees the tokens up
    to its own: [R, key heads, heads that share them, T, S], 0 for missing tokens.
    """
    count, width, steps = memory.count[first:], max(memory.counts[first:]), queries.shape[3]
    place = count[:, None] - steps + lookahead + torch.arange(steps, device=count.device)  # [R, T]
    end = torch.minimum(place, count[:, None] - 1).clamp(min=0)
    hidden = torch.arange(width, device=count.device) > end[..., None]  # [R, T, S]
    counted = (place >= 0)[:, None, None, :, None]
    for asking, keys in zip(queries, memory.keys[:, first:, :, :width], strict=True):
        grouped = asking.unflatten(1, (keys.shape[1], -1))  # [R, key heads, shared, T, D]
        logits = grouped @ keys[:, :, None].transpose(-1, -2)
        yield logits.masked_fill(hidden[:, None, None], -torch.inf).softmax(-1) * counted
