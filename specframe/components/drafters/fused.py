"""Two drafters in one tree."""

from __future__ import annotations

from torch import Tensor

from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Drafter, Observer, Target, TreePolicy
from specframe.kernel.types import ALL_DRAWS, Committed, Context, Cycle, Draw, TokenTree


class Fused:
    """Proposes what two drafters propose, common prefixes being one node (RASD's fusion).

    The first drafter's nodes come first and all stay; the second one's follow while the tree has fewer than `nodes`. A
    third drafter joins as a `fused` second one. Only the first may sample. The second one's nodes are `top`, and none
    is merged into a sampled node, which keeps the distribution that was recorded for it. So every verifier that takes
    mixed draws stays lossless.

    Source: RASD (Quan et al. 2025, arXiv 2503.03434), its tree fusion.

    Options:
        first: the drafter whose nodes come first
        second: the drafter whose nodes are added, which must not sample
        tree: the tree policy of a first drafter that grows one
        nodes: the most nodes of the tree, the root included; none for as many as both propose
    """

    draws: frozenset[Draw] | None = ALL_DRAWS

    def __init__(
        self, *, first: Drafter, second: Drafter, tree: TreePolicy | None = None, nodes: int | None = None
    ) -> None:
        own = first.draws
        if own is None:
            if tree is None:
                raise CompositionError("the first drafter of fused grows a tree policy: give fused a `tree`")
            if tree.draws != {Draw.TOP} and not tree.exact:
                raise CompositionError("fused needs a tree policy that records the exact law of every sampled node")
            if isinstance(tree, Observer):
                raise CompositionError("fused needs a tree policy that does not learn from earlier drafts")
            own = tree.draws
        elif tree is not None:
            raise CompositionError("the first drafter of fused builds its own tree: remove fused's `tree`")
        if second.draws != {Draw.TOP}:
            raise CompositionError("the second drafter of fused must build its own tree, and must not sample")
        size = first.nodes if tree is None else tree.nodes
        if size is None or second.nodes is None or (nodes is not None and nodes < size):
            raise InputError(f"fused needs room for the first drafter's {size} nodes, got {nodes}")
        self.first = first
        self.second = second
        self.tree = tree
        self.draws = own | {Draw.TOP}
        self.nodes: int | None = nodes or size + second.nodes - 1
        self.taps: frozenset[str] = first.taps | second.taps
        self._observers = [part for part in (first, second) if isinstance(part, Observer)]

    def bind(self, target: Target) -> None:
        """Binds both drafters."""
        self.first.bind(target)
        self.second.bind(target)

    def open(self, slots: int, room: int) -> None:
        """Forgets every row."""
        self.first.open(slots, room)
        self.second.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Both drafts below root [B] in one tree."""
        draft = self.first.propose(root, self.tree, context)
        return draft.merge(self.second.propose(root, None, context), self.nodes)

    def commit(self, committed: Committed) -> None:
        """Passes what was committed to both drafters."""
        self.first.commit(committed)
        self.second.commit(committed)

    def observe(self, cycle: Cycle) -> None:
        """Passes the cycle to the parts that observe."""
        for part in self._observers:
            part.observe(cycle)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.first.keep(rows)
        self.second.keep(rows)
