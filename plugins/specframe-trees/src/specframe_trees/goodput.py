"""A tree as deep as pays for all rows together: the cost of a cycle depends on the number and length of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe import InputError
from specframe.plugin import Context, Cycle, Draw, Expand, TokenTree, fill
from specframe_trees.adaptive import Adaptive, estimated, tested
from specframe_trees.costs import read_known
from specframe_trees.texts import RowTexts

POOLED = 512.0
"""Number of cycles that the acceptance of all rows looks back."""


class Goodput:
    """One depth for all rows: the one of most expected tokens per second (SmartSpec, Liu et al. 2024, batch level).

    A cycle of R rows with drafts of d levels after C tokens takes T(R, d, C) seconds and is expected to commit the sum
    over the rows of 1 + a1 + a1 a2 + ... + a1 ... ad tokens, where a_l is the row's recent acceptance of level l,
    estimated as in `adaptive`. The depth of the largest quotient is drafted; it may be 0, plain decoding. So a server
    with few requests speculates, and one that is busy stops where the target's arithmetic is worth more than the
    guesses; after long contexts, where reading keys and values takes the time, it speculates again. Acceptance is
    counted by level; the paper takes one rate for all levels, which promises too much of deep drafts. A row begins with
    the acceptance of all rows so far, those that have left included, so that short answers need not learn it anew.

    A drafter that is asked reads the texts of all rows, new prompts and what it has put off; a file of `specframe
    profile` has the seconds for a token. They are spread over the rows' answers, whose length is the average of those
    that ended, within what each may have: long prompts of short answers are not drafted for.

    The paper also chooses a depth for each row. Here a row that is drafted deeper costs all of them the drafter's
    passes, and on most targets the nodes, too: `dynamic` with `run.costs` gives rows numbers of nodes of their own.

    The choice is made from earlier cycles, before anything is drawn: the draft is exact. Times come from files, not
    from the clock. A row's depth depends on the other rows, and so does its sample, unless the verifier draws by
    position: with `match` a seed gives the same text whatever the load.

    Options:
        costs: files of `specframe profile --out`, one for each `run.batch` that was timed, or several of different
            `--context`; what lies between is interpolated, and what lies beyond is extrapolated from the two largest
        depth: how many levels to draft at most
        widths: the number of children per node, level by level; the last serves all deeper levels
        draw: top, iid or without_replacement
        memory: how many cycles of the batch the estimates look back
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
        found = {path: read_known(path, per_level) for path in costs}
        if len({(known.rows, known.context) for known in found.values()}) < len(costs):
            raise InputError(
                f"of the {len(costs)} files of costs, several were timed with the same run.batch and --context"
            )
        first = min(found, key=lambda path: (found[path].rows, found[path].context))
        self._rows = Adaptive(costs=first, depth=depth, widths=widths, draw=draw, memory=memory)
        self.promise = replace(self._rows.promise, row_independent=False)
        self._timed: dict[int, list[tuple[float, Tensor]]] = {}  # by rows: context, and seconds by depth [D + 1]
        self._reading: dict[int, list[tuple[float, Tensor]]] = {}  # by rows: context, and seconds of a prompt's token
        for known in sorted(found.values(), key=lambda known: (known.rows, known.context)):
            reading = (known.context, torch.tensor(known.reading, dtype=torch.float64))
            self._reading.setdefault(known.rows, []).append(reading)
            timed = (known.context, torch.tensor(known.costs, dtype=torch.float64))
            self._timed.setdefault(known.rows, []).append(timed)
        self.open(0, 0)

    def open(self, slots: int, room: int) -> None:
        """Forgets earlier sessions."""
        self._rows.open(slots, room)
        self._texts = RowTexts()
        self._pool: Tensor | None = None  # [2, D] discounted tests of each level in all rows, and those that it passed

    def observe(self, cycle: Cycle) -> None:
        """Counts, row by row and level by level, how far the cycle came."""
        self._rows.observe(cycle)
        self._texts.observe(cycle)
        if cycle.committed.prompt is None:
            found = torch.stack([part.sum(0) for part in tested(cycle, self._rows.depth)]).double()
            self._pool = found if self._pool is None else self._pool * (1 - 1 / POOLED) + found

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        self._rows.keep(rows)
        self._texts.keep(rows.tolist())

    def smaller(self) -> Goodput:
        """A copy of this policy with at most two levels, two children a node and four drafted nodes."""
        small = copy(self)
        small._rows = self._rows.smaller()
        small.promise = replace(small._rows.promise, row_independent=False)
        small._timed = {
            rows: [(context, costs[: small._rows.depth + 1]) for context, costs in timed]
            for rows, timed in self._timed.items()
        }
        small.open(0, 0)
        return small

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The tree below root [B], of the same shape in every row."""
        depth = int(self.goodput(root, context.left).argmax())  # of equals the shallower
        if depth:
            self._texts.drafted()
        return fill(self._rows.shape, self._rows.draw, expand, root, context, [depth] * len(root))

    def goodput(self, root: Tensor, left: Sequence[int] = ()) -> Tensor:
        """Expected tokens per second of all rows of root [B], by depth from 0: [D + 1] float64, on the host.

        `left` is how many tokens each row may still be given.
        """
        rows, longest = len(root), float(self._texts.longest)
        tokens = self._rows.tokens(root, self._usual()).sum(0)
        reading = _read_over(self._reading, rows, longest) * self._texts.unread(left)  # seconds for a token
        return tokens / (self.seconds(rows, longest) + pad(tokens[1:], (1, 0)) * reading)

    def seconds(self, rows: int, context: float = 0.0) -> Tensor:
        """Returns the seconds of a cycle of `rows` rows, the longest of `context` tokens, by depth from 0: [D + 1]."""
        return _read_over(self._timed, rows, context)

    def _usual(self) -> Sequence[float]:
        """The acceptance that a row begins with, by level."""
        if self._pool is None:
            return self._rows.usual
        tried, accepted = self._pool.tolist()
        return estimated(tried, accepted, self._rows.usual)


def _read_over(timed: Mapping[int, Sequence[tuple[float, Tensor]]], rows: int, context: float) -> Tensor:
    """Returns the values for a number of rows and a length of context; `timed` has them by rows, then by context."""
    return _read_off([(count, _read_off(found, context)) for count, found in timed.items()], rows)


def _read_off(timed: Sequence[tuple[float, Tensor]], place: float) -> Tensor:
    """The values at a place among those that were timed, which rise: the line between its neighbours.

    Before the first place the values are the first; after the last they are on the line through the last two, and not
    below the last.
    """
    (first, values), (last, most) = timed[0], timed[-1]
    if place <= first or len(timed) == 1:
        return values
    pairs = list(pairwise(timed))
    (less, low), (more, high) = next((pair for pair in pairs if place <= pair[1][0]), pairs[-1])
    found = low + (high - low) * (place - less) / (more - less)
    return found if place <= last else torch.maximum(found, most)
