"""The figures of acceptance, defined once, and the result of a generation."""

from __future__ import annotations

from dataclasses import dataclass, field

from specframe.decoding.clock import Clock
from specframe.files.text import render_table
from specframe.kernel.types import Cycle, TokenTree, Verdict


@dataclass
class Acceptance:
    """Acceptance counts over cycles; admissions are not counted.

    A row's cycle counts as verified, before budgets and ends of sequence cut its tokens.
    """

    cycles: int = 0
    accepted: int = 0
    drafted: int = 0
    reached: list[int] = field(default_factory=list)
    """reached[d]: cycles whose accepted path has more than d nodes."""
    possible: list[int] = field(default_factory=list)
    """possible[d]: cycles whose draft has a node at depth d + 1."""
    _pending: list[tuple[Verdict, TokenTree]] = field(default_factory=list, repr=False)

    def add(self, cycle: Cycle) -> None:
        """Records a cycle, which is counted later, so that counting is not timed."""
        self.count(cycle.draft, cycle.verdict)

    def count(self, draft: TokenTree, verdict: Verdict) -> None:
        """Records a cycle's draft and verdict."""
        slim = TokenTree(draft.tokens, draft.parent, draft.valid, draft.draw, draft.levels)  # laws would accumulate
        self._pending.append((verdict, slim))

    def settle(self) -> Acceptance:
        """Counts the recorded cycles, and returns itself."""
        for verdict, tree in self._pending:
            self.drafted += int(tree.valid.sum()) - len(tree.valid)
            deepest_nodes = (tree.depth * tree.valid).amax(1).tolist()
            for accepted, deepest in zip(verdict.length.tolist(), deepest_nodes, strict=True):
                self.count_row(accepted, 0, deepest)
        self._pending.clear()
        return self

    def count_row(self, accepted: int, drafted: int, levels: int) -> None:
        """Counts one cycle of a row at once: its accepted and drafted nodes, and the levels of its draft."""
        self.cycles += 1
        self.accepted += accepted
        self.drafted += drafted
        for counts, depth in ((self.reached, accepted), (self.possible, levels)):
            counts.extend([0] * (depth - len(counts)))
            for level in range(depth):
                counts[level] += 1

    @property
    def by_depth(self) -> list[int]:
        """Number of cycles whose accepted path reached each drafted depth."""
        return self.reached + [0] * (len(self.possible) - len(self.reached))

    @property
    def tau(self) -> float:
        """Tokens committed per cycle, the bonus included."""
        return 1 + self.accepted / self.cycles if self.cycles else 1.0

    @property
    def alpha(self) -> list[float]:
        """Share of cycles whose path reached each depth; tau = 1 + sum(alpha)."""
        return [count / self.cycles for count in self.by_depth]

    @property
    def conditional_alpha(self) -> list[float]:
        """Share accepted at each depth among cycles whose path reached the depth above."""
        alpha = self.alpha
        return [own / parent if parent else 0.0 for parent, own in zip([1.0, *alpha], alpha, strict=False)]

    @property
    def efficiency(self) -> float:
        """The share of drafted nodes that were accepted."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True)
class Result:
    """Output of a generation: one entry per prompt, in order."""

    texts: list[str]
    tokens: list[list[int]]
    """The new tokens of each prompt; an end-of-sequence token is among them."""
    ended: list[str]
    """Reason for each row's end: `length`, `end` or `stop`."""
    acceptance: Acceptance
    clock: Clock

    def _repr_html_(self) -> str:
        """The texts as a table, for notebooks."""
        rows = zip(self.texts, map(str, map(len, self.tokens)), self.ended, strict=True)
        return render_table(("text", "tokens", "ended by"), rows, f"tau {self.acceptance.tau:.2f}")
