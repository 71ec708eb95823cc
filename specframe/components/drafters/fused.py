"""Two drafters in one tree."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Drafter, Observer, Target, TreePolicy
from specframe.kernel.miniatures import Shrinkable, Untrained
from specframe.kernel.types import Committed, Context, Cycle, Draw, TokenTree


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

    def __init__(
        self, *, first: Drafter, second: Drafter, tree: TreePolicy | None = None, nodes: int | None = None
    ) -> None:
        if not first.promise.complete:
            if tree is None:
                raise CompositionError("the first drafter of fused grows a tree policy: give fused a `tree`")
            if tree.promise.sampled and not tree.promise.exact:
                raise CompositionError(
                    "fused needs a tree policy that records the exact distribution of every sampled node"
                )
            if isinstance(tree, Observer):
                raise CompositionError("fused needs a tree policy that does not learn from earlier drafts")
        elif tree is not None:
            raise CompositionError("the first drafter of fused builds its own tree: remove fused's `tree`")
        if second.promise.draws != {Draw.TOP}:
            raise CompositionError("the second drafter of fused must build its own tree, and must not sample")
        own, other = first.promise if tree is None else tree.promise, second.promise
        assert own.draws is not None and own.nodes is not None and other.nodes is not None
        if nodes is not None and nodes < own.nodes:
            raise InputError(f"fused needs room for the first drafter's {own.nodes} nodes, got {nodes}")
        self.first = first
        self.second = second
        self.tree = tree
        self.nodes = nodes
        self.promise = replace(
            own, draws=own.draws | {Draw.TOP}, nodes=nodes or own.nodes + other.nodes - 1, depth=None, settled=False
        )
        self.taps: frozenset[str] = first.taps | second.taps
        self._observers = [part for part in (first, second) if isinstance(part, Observer)]

    def untrained(self, vocab: int) -> Fused:
        """The same, its drafters for a target of `vocab` tokens."""
        first, second = (
            each.untrained(vocab) if isinstance(each, Untrained) else each for each in (self.first, self.second)
        )
        return Fused(first=first, second=second, tree=self.tree, nodes=self.nodes)

    def smaller(self) -> Fused:
        """The same with a smaller tree of the first drafter, and smaller drafts of the second."""
        first, second = (each.smaller() if isinstance(each, Shrinkable) else each for each in (self.first, self.second))
        return Fused(
            first=first, second=second, tree=self.tree.smaller() if isinstance(self.tree, Shrinkable) else self.tree
        )

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
        return draft.merge(self.second.propose(root, None, context), self.promise.nodes)

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
