"""The budget of a second drafter: limits its added nodes per row by their recent gain."""

from __future__ import annotations

from collections.abc import Sequence

from specframe.components.drafters.text import gained
from specframe.kernel.costs import Costs
from specframe.kernel.types import Committed, TokenTree

KEPT = 0.9
"""Factor by which earlier counts decay in every cycle."""


class Paying:
    """Leaves added nodes out of a row's draft once they cost more than they gain, until one would have been accepted.

    The gain of a cycle's added nodes is the number of accepted ones times the time per token without them; their cost
    is the time of scoring them. The decision depends only on earlier cycles of the row.
    """

    def __init__(self) -> None:
        self._rows: list[_Row] = []

    def open(self) -> None:
        """Forgets every row."""
        self._rows = []

    def commit(self, committed: Committed) -> None:
        """Counts the gain of the last draft's added nodes; new rows are appended."""
        texts = gained(committed)
        if committed.prompt is not None:
            self._rows += [_Row() for _ in texts]
            return
        for row, text in zip(self._rows, texts, strict=True):
            row.count(text)

    def keep(self, rows: Sequence[int]) -> None:
        """Keeps these rows, in this order."""
        self._rows = [self._rows[row] for row in rows]

    def paying(self, draft: TokenTree, both: TokenTree, costs: Costs) -> TokenTree:
        """Returns `both`, `draft` followed by added nodes, without the added nodes of rows in which they do not pay."""
        own = draft.shape[1]
        columns = both.columns
        valid = [[*row] for row in columns[0]]
        for row, real, parents, texts in zip(self._rows, valid, *columns[1:], strict=True):
            nodes, added = costs.taken + sum(real[:own]), sum(real[own:])
            scoring = costs.score(nodes)
            nodes_reversed = reversed(range(1, len(real)))  # of siblings with equal tokens the first one stays
            row.children = {(parents[node], texts[node]): node for node in nodes_reversed if real[node]}
            row.own = own
            row.time = scoring + costs.level * draft.levels
            row.cost = costs.score(nodes + added) - scoring
            if row.resting:
                real[own:] = [False] * (len(real) - own)
        width = max(node for real in valid for node, known in enumerate(real) if known) + 1
        if width <= own:
            return draft
        if width == both.shape[1] and valid == columns[0]:
            return both
        packed = both.packed[..., :width]
        packed[2] = packed.new_tensor(valid)[:, :width]
        return TokenTree.unpack(packed, both.levels, both.q, both.support)


class _Row:
    """Gain and cost of the added nodes of one batch row."""

    def __init__(self) -> None:
        self.resting = False
        """True if the added nodes are left out."""
        self.children: dict[tuple[int, int], int] = {}
        """The last draft's nodes by parent and token, those that were left out included."""
        self.own = 1
        """Index of the first added node."""
        self.time, self.cost = 0.0, 0.0
        """Time without the added nodes, and their cost, in units of the time of a token that is not drafted."""
        self._balance = 0.0
        self._times, self._tokens = 0.0, 0.0  # of cycles without them

    def count(self, text: list[int]) -> None:
        """Counts a cycle that committed this text.

        Its last token was not drafted, unless it was left out.
        """
        path, node = list[int](), 0
        for token in text if self.resting else text[:-1]:
            found = self.children.get((node, token))
            if found is None:
                break
            path.append(node := found)
        added = sum(node >= self.own for node in path)
        self._times = KEPT * self._times + self.time
        self._tokens = KEPT * self._tokens + len(path) - added + 1
        if self.resting:
            self.resting = not added
            return
        self._balance = KEPT * self._balance + added * self._times / self._tokens - self.cost
        if self._balance < 0:
            self.resting, self._balance = True, 0.0
