"""A tree as deep as pays: the depth follows what was accepted lately, and what a cycle costs."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from specframe.components.trees.costs import read_costs
from specframe.components.trees.fill import fill
from specframe.components.trees.shape import Shape
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import RandomSource, Sampling
from specframe.kernel.types import Draw, Expand, Prompts, TokenTree, Verdict

TRIALS = 2.0
"""How many cycles the guess of a level's acceptance is worth, which stands until it has been drafted."""

HOPE = 0.25
"""How far the guess lies above the acceptance of the level before, as a share of the way to 1."""


class Adaptive:
    """The first levels of a shape, as many as promise most tokens per cost (SmartSpec's goodput, Liu et al. 2024).

    A row's expected tokens with a draft of d levels are 1 + a1 + a1 a2 + ... + a1 ... ad, where a_l is the share of its
    recent cycles that went on to level l among those that came to the level above and had drafted it. Over
    what the cycle costs that is the row's promise, and the depth of the largest is drafted; it may be 0, a
    cycle of plain decoding. A cycle counts (1 - 1/memory) times as much as the one after it, and a level that has
    not been drafted for long is taken to be a little better than the level above it, the first one to be
    accepted half of the time. So a depth that was given up is tried again, a few times a memory.

    The choice is made from verdicts of earlier cycles before anything is drawn: that is no peeking, and the draft
    is exact. Costs are options and not the clock, so that a seed gives the same tokens on every machine. Each
    row decides for itself, by its own past; a batch drafts as deep as its deepest row, and the others
    stop early: their fewer nodes save no time then, as those of the deepest row are computed.

    Each cycle costs one look at the rows from the host.

    Options:
        costs: what a cycle costs with 0, 1, 2 ... `depth` levels, in any unit; or the file of `specframe profile`
        depth: how many levels to draft at most
        widths: the number of children per node, level by level; the last serves all deeper levels
        draw: top, iid or without_replacement
        memory: how many cycles the estimates look back
    """

    exact = True
    settled = True

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
        self.shape = Shape.of_widths([widths[min(level, len(widths) - 1)] for level in range(depth)])
        self.draw = draw
        self.draws = frozenset({draw})
        self.nodes = self.shape.nodes
        self.memory = memory
        sizes = [1 + sum(len(path) <= level for path in self.shape.paths) for level in range(depth + 1)]
        listed = read_costs(costs, sizes) if isinstance(costs, Path) else costs[: depth + 1]
        if len(listed) <= depth or min(listed) <= 0:
            raise InputError(f"costs are {depth + 1} positive numbers, for drafts of 0 to {depth} levels, got {listed}")
        self._costs = torch.tensor(listed, dtype=torch.float64)  # [D + 1]
        self._tried: Tensor | None = None  # [B, D] discounted cycles that tested a level; None: nothing is known
        self._accepted: Tensor | None = None  # [B, D] and those that passed it

    def begin(self, prompts: Prompts) -> None:
        """Forgets what it has seen: a session's tokens follow from its prompts and its seed."""
        shape = (len(prompts.count), self.depth)
        self._tried = torch.zeros(shape, dtype=torch.float64, device=prompts.count.device)
        self._accepted = torch.zeros_like(self._tried)

    def hear(self, draft: TokenTree, verdict: Verdict) -> None:
        """Counts, level by level, where the rows' cycles came to and whether they went on."""
        if self._tried is None or self._accepted is None:
            return
        level = torch.arange(1, self.depth + 1, device=verdict.length.device)
        drafted = (draft.depth * draft.valid).amax(1)  # [B]
        tried = level <= torch.minimum(drafted, verdict.length + 1)[:, None]  # [B, D]
        fading = 1 - 1 / self.memory
        self._tried = self._tried * fading + tried
        self._accepted = self._accepted * fading + (level <= verdict.length[:, None])

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        if self._tried is not None and self._accepted is not None:
            self._tried, self._accepted = self._tried[rows], self._accepted[rows]

    def grow(self, expand: Expand, root: Tensor, sampling: Sampling, random: RandomSource) -> TokenTree:
        """The tree below root [B]: as many levels as the deepest row has, invalid where others have stopped."""
        depth = self.promise(root).argmax(1)  # [B], of equal promises the shallower
        return fill(self.shape, self.draw, expand, root, sampling, random, depth)

    def promise(self, root: Tensor) -> Tensor:
        """Expected tokens per cost of every depth, from 0, for the rows of root [B]: [B, D + 1] float64."""
        shares = self._shares(root)  # [B, D]
        tokens = torch.nn.functional.pad(shares.cumprod(1).cumsum(1), (1, 0)) + 1
        return tokens / self._costs.to(root.device)

    def _shares(self, root: Tensor) -> Tensor:
        """The estimated acceptance of every level, given the one above: [B, D]."""
        guess = torch.full(root.shape, 0.5, dtype=torch.float64, device=root.device)
        nothing = guess.new_zeros(len(root), self.depth)
        tried = nothing if self._tried is None else self._tried
        accepted = nothing if self._accepted is None else self._accepted
        shares = []
        for level in range(self.depth):
            shares.append((accepted[:, level] + TRIALS * guess) / (tried[:, level] + TRIALS))
            guess = shares[-1] + HOPE * (1 - shares[-1])
        return torch.stack(shares, 1)
