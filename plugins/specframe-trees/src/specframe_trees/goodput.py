"""A tree whose depth pays for all rows together; the cost of a cycle depends on the number and length of rows."""

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
"""Number of cycles over which the acceptance of all rows is averaged."""


class Goodput:
    """One depth for all rows: that with the most expected tokens per second (SmartSpec, Liu et al. 2024, batch level).

    A cycle of R rows with drafts of d levels after C tokens takes T(R, d, C) seconds. It is expected to commit the sum
    over the rows of 1 + a1 + a1 a2 + ... + a1 ... ad tokens, where a_l is the row's recent acceptance of level l,
    estimated as in `adaptive`. The depth with the largest quotient is drafted; it may be 0, plain decoding. A server
    with few requests thus speculates, and a busy one stops when the target's arithmetic is worth more than the drafts.
    After long contexts, where reading keys and values takes most of the time, it speculates again. Acceptance is
    counted by level; the paper's single rate for all levels overestimates deep drafts. A row starts with the acceptance
    of all rows so far, including those that have left, so that short answers need not measure it again.

    When the drafter is used, it first reads the texts of all rows: new prompts, and tokens that it has not read yet. A
    file of `specframe profile` has the seconds per token. They are distributed over the expected lengths of the rows'
    answers, the average of ended answers within each row's limit, so that rows with long prompts and short answers are
    not drafted for.

    The paper also chooses a depth for each row. Here a deeper draft of one row costs all rows the drafter's passes, and
    on most targets the nodes, too; `dynamic` with `run.costs` chooses numbers of nodes by row.

    The depth is chosen from earlier cycles before anything is drawn, so the draft is exact. Times come from files and
    are not measured during decoding. A row's depth depends on the other rows, and so does its sample, unless the
    verifier draws by position: with `match`, a seed gives the same text under any load.

    Options:
        costs: files of `specframe profile --out`, one for each `run.batch` that was timed, or several with different
            `--context`; values between are interpolated, values beyond are extrapolated from the two largest
        depth: maximum number of drafted levels
        widths: the number of children per node, level by level; the last serves all deeper levels
        draw: top, iid or without_replacement
        memory: number of cycles of the batch over which acceptance is averaged
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
        self._timed: dict[int, list[tuple[float, Tensor]]] = {}  # by rows: (context, seconds by depth [D + 1])
        self._reading: dict[int, list[tuple[float, Tensor]]] = {}  # by rows: (context, seconds per prompt token)
        for known in sorted(found.values(), key=lambda known: (known.rows, known.context)):
            reading = (known.context, torch.tensor(known.reading, dtype=torch.float64))
            self._reading.setdefault(known.rows, []).append(reading)
            timed = (known.context, torch.tensor(known.costs, dtype=torch.float64))
            self._timed.setdefault(known.rows, []).append(timed)
        self.open(0, 0)

    def open(self, slots: int, room: int) -> None:
        """Starts a session without earlier observations."""
        self._rows.open(slots, room)
        self._texts = RowTexts()
        self._pool: Tensor | None = None  # [2, D] discounted tests and passes of each level, over all rows

    def observe(self, cycle: Cycle) -> None:
        """Counts, row by row and level by level, which levels were tested and passed."""
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
        """Returns a copy of this policy with at most two levels, two children per node and four drafted nodes."""
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
        """Returns the tree below root [B], of equal shape in every row."""
        depth = int(self.goodput(root, context.left).argmax())  # of equal values, the smaller depth
        if depth:
            self._texts.drafted()
        return fill(self._rows.shape, self._rows.draw, expand, root, context, [depth] * len(root))

    def goodput(self, root: Tensor, left: Sequence[int] = ()) -> Tensor:
        """Returns the expected tokens per second of all rows of root [B], by depth: [D + 1] float64, on the host.

        `left` is the number of tokens that each row may still generate.
        """
        rows, longest = len(root), float(self._texts.longest)
        tokens = self._rows.tokens(root, self._usual()).sum(0)
        reading = _read_over(self._reading, rows, longest) * self._texts.unread(left)  # seconds per token
        return tokens / (self.seconds(rows, longest) + pad(tokens[1:], (1, 0)) * reading)

    def seconds(self, rows: int, context: float = 0.0) -> Tensor:
        """Returns the seconds of a cycle of `rows` rows, the longest of `context` tokens, by depth from 0: [D + 1]."""
        return _read_over(self._timed, rows, context)

    def _usual(self) -> Sequence[float]:
        """Returns the acceptance with which a row starts, by level."""
        if self._pool is None:
            return self._rows.usual
        tried, accepted = self._pool.tolist()
        return estimated(tried, accepted, self._rows.usual)


def _read_over(timed: Mapping[int, Sequence[tuple[float, Tensor]]], rows: int, context: float) -> Tensor:
    """Interpolates the values for a number of rows and a context length; `timed` has them by rows, then by context."""
    return _read_off([(count, _read_off(found, context)) for count, found in timed.items()], rows)


def _read_off(timed: Sequence[tuple[float, Tensor]], place: float) -> Tensor:
    """Interpolates linearly at a place; the places in `timed` are ascending.

    Before the first place the values are constant; after the last they continue the line through the last two, but do
    not decrease.
    """
    (first, values), (last, most) = timed[0], timed[-1]
    if place <= first or len(timed) == 1:
        return values
    pairs = list(pairwise(timed))
    (less, low), (more, high) = next((pair for pair in pairs if place <= pair[1][0]), pairs[-1])
    found = low + (high - low) * (place - less) / (more - less)
    return found if place <= last else torch.maximum(found, most)
