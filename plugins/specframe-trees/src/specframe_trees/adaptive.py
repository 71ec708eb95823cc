"""A tree of adaptive depth, which follows recent acceptance and the cost of a cycle."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path

import torch
from torch import Tensor

from specframe import InputError
from specframe.plugin import Context, Cycle, Draw, Expand, Shape, TokenTree, fill
from specframe_trees.costs import read_known

GUESSED, FIRST, RISE = 2.0, 0.5, 0.25
"""Weight, in cycles, of the assumed acceptance of a level; the assumption for the first level; and the share of the
distance to 1 by which the assumption for a deeper level exceeds the acceptance of the level above it.
"""

MEASURED = 8.0
"""Weight, in cycles, of the acceptance in a file of `specframe profile`."""


class Adaptive:
    """The number of levels with the most tokens per cost (SmartSpec's goodput, Liu et al. 2024), of a fixed shape.

    A row's expected tokens with a draft of d levels are 1 + a1 + a1 a2 + ... + a1 ... ad, where a_l is the share of
    recent cycles that accepted a node of level l, among those that had drafted level l and reached the level above.
    Divided by the cost of the cycle, this is the row's expected rate. The depth with the largest rate is drafted; it
    may be 0, a cycle of plain decoding. The weight of a cycle decreases by the factor 1 - 1/memory with every later
    cycle. For a level that has not been drafted recently, the acceptance in the file of `specframe profile` is assumed,
    or without a file slightly more than that of the level above. Sessions thus start with a depth that is good on
    average, and abandoned depths are tried again.

    The depth is chosen from verdicts of earlier cycles before anything is drawn, so the draft remains exact. Costs are
    options, not measured during decoding, so that a seed gives the same tokens on every machine. Each row decides by
    its own past. A batch drafts as deep as its deepest row, and other rows stop early; their missing nodes then save no
    time, because those of the deepest row are computed anyway.

    Each cycle needs one host sync.

    Options:
        costs: the cost of a cycle with 0, 1, 2 ... `depth` levels, in any unit; or a file of `specframe profile`, which
            also has the initial acceptance of each level
        depth: maximum number of drafted levels
        widths: the number of children per node, level by level; the last serves all deeper levels
        draw: top, iid or without_replacement
        memory: number of cycles over which acceptance is averaged
    """

    def __init__(
        self,
        *,
        costs: list[float] | Path,
        depth: int = 6,
        widths: tuple[int, ...] = (1,),
        draw: Draw = Draw.TOP,
        memory: float = 48.0,
    ) -> None:
        if depth < 1 or not widths:
            raise InputError(f"an adaptive tree needs a depth and a width of at least 1, got {depth} and {widths}")
        if memory < 1:
            raise InputError(f"a memory is a number of cycles of at least 1, got {memory}")
        self.depth = depth
        per_level = [widths[min(level, len(widths) - 1)] for level in range(depth)]
        self.shape = Shape.of_widths(per_level)
        self.draw = draw
        self.promise = self.shape.promise(draw)
        self.memory = memory
        if isinstance(costs, Path):
            known = read_known(costs, per_level)
            listed, self._usual = known.costs, known.acceptance
        else:
            listed, self._usual = costs[: depth + 1], []
        if len(listed) <= depth or min(listed) <= 0:
            raise InputError(f"costs are {depth + 1} positive numbers, for drafts of 0 to {depth} levels, got {listed}")
        self._costs = torch.tensor(listed, dtype=torch.float64)  # [D + 1]
        self._tried: Tensor | None = None  # [B, D] discounted cycles that tested a level; None: none yet
        self._accepted: Tensor | None = None  # [B, D] of these, cycles that passed it

    def open(self, slots: int, room: int) -> None:
        """Starts a session without observations, so that a row's tokens depend only on its prompt and seed."""
        self._tried = self._accepted = None

    def observe(self, cycle: Cycle) -> None:
        """Counts, level by level, which levels the cycle's rows tested and passed; new rows start at zero."""
        verdict = cycle.verdict
        if self._tried is None or self._accepted is None:
            self._tried = self._accepted = torch.zeros(0, self.depth, dtype=torch.float64, device=verdict.length.device)
        if cycle.committed.prompt is not None:
            none = self._tried.new_zeros(len(verdict.length), self.depth)
            self._tried, self._accepted = torch.cat([self._tried, none]), torch.cat([self._accepted, none])
            return
        tried, accepted = tested(cycle, self.depth)
        fading = 1 - 1 / self.memory
        self._tried = self._tried * fading + tried
        self._accepted = self._accepted * fading + accepted

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        if self._tried is not None and self._accepted is not None:
            self._tried, self._accepted = self._tried[rows], self._accepted[rows]

    def smaller(self) -> Adaptive:
        """Returns a copy of this policy with at most two levels, two children per node and four drafted nodes."""
        small = copy(self)
        small.depth = min(self.depth, 2)
        small.shape = self.shape.smaller()
        small.promise = small.shape.promise(self.draw)
        small._costs = self._costs[: small.depth + 1]
        small.open(0, 0)
        return small

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """Returns the tree below root [B], as deep as the deepest row; nodes of rows that stop earlier are invalid."""
        depth = self.expected(root).argmax(1).tolist()  # of equal rates, the smaller depth
        return fill(self.shape, self.draw, expand, root, context, depth)

    def expected(self, root: Tensor) -> Tensor:
        """Returns the expected tokens per cost of every depth, by row of root [B]: [B, D + 1] float64, on the host."""
        return self.tokens(root) / self._costs

    def tokens(self, root: Tensor, usual: Sequence[float] | None = None) -> Tensor:
        """Returns the expected tokens of a cycle of every depth, by row of root [B]: [B, D + 1] float64, on the host.

        `usual` replaces the file's acceptance for levels that a row has not tested recently.
        """
        shares = self._shares(root, usual)  # [B, D]
        return torch.nn.functional.pad(shares.cumprod(1).cumsum(1), (1, 0)) + 1

    def _shares(self, root: Tensor, usual: Sequence[float] | None = None) -> Tensor:
        """Returns the estimated acceptance of every level, given the one above: [B, D], on the host."""
        if self._tried is None or self._accepted is None:
            nothing = [0.0] * self.depth
            counts = [[nothing, nothing]] * len(root)
        else:
            counts = torch.stack([self._tried, self._accepted], 1).tolist()
        usual = self._usual if usual is None else usual
        shares = [estimated(tried, accepted, usual) for tried, accepted in counts]
        return torch.tensor(shares, dtype=torch.float64)

    @property
    def usual(self) -> Sequence[float]:
        """The acceptance by level in the file of `specframe profile`; empty without a file."""
        return self._usual


def tested(cycle: Cycle, depth: int) -> tuple[Tensor, Tensor]:
    """Returns which of `depth` levels a cycle tested in each row, and which passed: [B, D] bool each."""
    draft, verdict = cycle.draft, cycle.verdict
    level = torch.arange(1, depth + 1, device=verdict.length.device)
    drafted = (draft.depth * draft.valid).amax(1)  # [B]
    return level <= torch.minimum(drafted, verdict.length + 1)[:, None], level <= verdict.length[:, None]


def estimated(tried: Sequence[float], accepted: Sequence[float], usual: Sequence[float]) -> list[float]:
    """Estimates the acceptance of every level, given the one above, from numbers of cycles that tested and passed it.

    `usual` is the initial assumption, for as many levels as it has.
    """
    # Each level depends on the one above; for few numbers a loop is faster than tensors.
    shares: list[float] = []
    for level in range(len(tried)):
        guess, worth = (shares[-1] + RISE * (1 - shares[-1]) if shares else FIRST), GUESSED
        if level < len(usual):
            guess, worth = usual[level], MEASURED
        shares.append((accepted[level] + worth * guess) / (tried[level] + worth))
    return shares
