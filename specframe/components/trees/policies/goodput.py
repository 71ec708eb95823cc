"""A tree as deep as pays for all rows together: what a cycle costs depends on how many rows it has."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from specframe.components.trees.policies.adaptive import Adaptive
from specframe.components.trees.shapes.costs import read_known
from specframe.components.trees.shapes.fill import fill
from specframe.kernel.errors import InputError
from specframe.kernel.types import Context, Cycle, Draw, Expand, TokenTree


class Goodput:
    """One depth for all rows: the one of most expected tokens per second (SmartSpec, Liu et al. 2024, batch level).

    A cycle of R rows with drafts of d levels takes T(R, d) seconds and is expected to commit the sum over the rows of
    1 + a1 + a1 a2 + ... + a1 ... ad tokens, where a_l is the row's recent acceptance of level l, estimated as in
    `adaptive`. The depth of the largest quotient is drafted; it may be 0, plain decoding. So a server with few requests
    speculates, and one that is busy stops where the target's arithmetic is worth more than the guesses. Acceptance is
    counted by level; the paper takes one rate for all levels, which promises too much of deep drafts.

    The choice is made from what earlier cycles showed, before anything is drawn: the draft is exact. Times come
    from files, not from the clock. A row's depth depends on the other rows, and so does its sample, unless the
    verifier draws by position: with `match` a seed gives the same text whatever the load.

    Options:
        costs: files of `specframe profile --out`, one for each `run.batch` that was timed; what lies between is
            interpolated, and what lies beyond is extrapolated from the two largest
        depth: how many levels to draft at most
        widths: the number of children per node, level by level; the last serves all deeper levels
        draw: top, iid or without_replacement
        memory: how many cycles the estimates look back
    """

    def __init__(
        self,
        *,
        costs: list[Path],
        depth: int = 4,
        widths: tuple[int, ...] = (1,),
        draw: Draw = Draw.TOP,
        memory: float = 48.0,
    ) -> None:
        if not costs:
            raise InputError("goodput needs costs: files of `specframe profile --out`, one for each run.batch")
        per_level = [widths[min(level, len(widths) - 1)] for level in range(depth)] if widths else []
        known = {found.rows: (path, found) for path in costs for found in [read_known(path, per_level)]}
        if len(known) < len(costs):
            raise InputError(f"of the {len(costs)} files of costs, several were timed with the same run.batch")
        fewest = known[min(known)][0]
        self._rows = Adaptive(costs=fewest, depth=depth, widths=widths, draw=draw, memory=memory)
        self.promise = replace(self._rows.promise, alone=False)
        self._timed = [
            (rows, torch.tensor(found.costs, dtype=torch.float64)) for rows, (_, found) in sorted(known.items())
        ]

    def open(self, slots: int, room: int) -> None:
        """Forgets earlier sessions."""
        self._rows.open(slots, room)

    def observe(self, cycle: Cycle) -> None:
        """Counts, row by row and level by level, how far the cycle came."""
        self._rows.observe(cycle)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        self._rows.keep(rows)

    def smaller(self) -> Goodput:
        """The same policy with two levels, two children a node and four drafted nodes at most."""
        small = copy(self)
        small._rows = self._rows.smaller()
        small.promise = replace(small._rows.promise, alone=False)
        small._timed = [(rows, costs[: small._rows.depth + 1]) for rows, costs in self._timed]
        return small

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The tree below root [B], of the same shape in every row."""
        depth = int(self.goodput(root).argmax())  # of equals the shallower
        return fill(self._rows.shape, self._rows.draw, expand, root, context, [depth] * len(root))

    def goodput(self, root: Tensor) -> Tensor:
        """Expected tokens per second of all rows of root [B], by depth from 0: [D + 1] float64, on the host."""
        return self._rows.tokens(root).sum(0) / self.seconds(len(root))

    def seconds(self, rows: int) -> Tensor:
        """What a cycle of so many rows takes, by depth from 0: [D + 1]."""
        first, last = self._timed[0], self._timed[-1]
        if rows <= first[0] or len(self._timed) == 1:
            return first[1]
        pairs = list(pairwise(self._timed))
        (less, low), (more, high) = next((pair for pair in pairs if rows <= pair[1][0]), pairs[-1])
        seconds = low + (high - low) * (rows - less) / (more - less)
        return seconds if rows <= last[0] else torch.maximum(seconds, last[1])
