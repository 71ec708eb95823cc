"""Merges the drafts of two drafters into one draft tree."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from specframe.components.drafters.budget import Paying
from specframe.components.trees.recording import (
    Proposals,
    RecordingTree,
    WatchedTree,
    WrapExpand,
    WrapSearch,
    paths_of,
    watched,
)
from specframe.kernel.capabilities import small_form, untrained_form
from specframe.kernel.composition import draft_of
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Drafter, Observer, Target, TreePolicy
from specframe.kernel.store import continuation_of
from specframe.kernel.types import Committed, Context, Cycle, Draw, TokenTree


class Fused:
    """Merges the proposals of two drafters into one tree with shared prefixes (RASD's fusion).

    The first drafter's nodes come first and all stay; the second one's follow while the tree has fewer than `nodes`. A
    third drafter can be added as a `fused` second one. Only the first may sample. The second one's nodes are `top` and
    are never merged into sampled nodes, which keep their recorded distributions. Every verifier that supports mixed
    draws therefore stays lossless.

    With a `tail`, the second drafter also copies after the first one's best path, which takes the first child of every
    node: the better drafter proposes the first tokens of a draft, the cheaper one the later tokens.

    With `run.costs`, a row uses only the first drafter's draft once the second one's nodes cost more than they gain,
    until one of them would have been accepted.

    Source: RASD (Quan et al. 2025, arXiv 2503.03434), its tree fusion and pruning; CS-Drafting (Chen et al. 2024, arXiv
    2312.11462), its horizontal cascade.

    Options:
        first: the drafter whose nodes come first
        second: the drafter whose nodes are added, which must not sample
        tree: the tree policy of a first drafter that grows one
        nodes: the largest number of nodes of the tree, the root included; none: all that both propose
        tail: the largest number of tokens that the second drafter copies after the first one's best path
        plausible: nodes of the second drafter to which the first gives a lower probability are left out
    """

    def __init__(
        self,
        *,
        first: Drafter,
        second: Drafter,
        tree: TreePolicy | None = None,
        nodes: int | None = None,
        tail: int = 0,
        plausible: float = 0.0,
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
        if first.promise.overlaps_scoring or second.promise.overlaps_scoring:
            raise CompositionError("a drafter that drafts `ahead` stands alone: fused takes the drafter in it")
        if tail < 0 or not 0 <= plausible < 1:
            raise InputError(
                f"fused needs a tail of at least 0 and plausible from 0 to below 1, got {tail} and {plausible:g}"
            )
        if tail and continuation_of(second) is None:
            raise CompositionError("the second drafter of fused copies after no draft: leave out fused's `tail`")
        if plausible and tree is None:
            raise CompositionError("the first drafter of fused gives no probabilities: leave out fused's `plausible`")
        own, other = draft_of(first, tree), second.promise
        assert own.draws is not None and own.nodes is not None and other.nodes is not None
        if nodes is not None and nodes < own.nodes:
            raise InputError(f"fused needs room for the first drafter's {own.nodes} nodes, got {nodes}")
        self.first = first
        self.second = second
        self._continue = continuation_of(second)
        self.tree = tree
        self.nodes = nodes
        self.tail = tail
        self.plausible = plausible
        self.promise = replace(
            own,
            draws=own.draws | {Draw.TOP},
            nodes=nodes or own.nodes + other.nodes - 1 + tail,
            depth=None,
            fixed_sibling_count=False,
            row_independent=own.row_independent and other.row_independent,
            uses_target_layers=own.uses_target_layers or other.uses_target_layers,
            needs_all_scores=own.needs_all_scores or other.needs_all_scores,
        )
        self.taps: frozenset[str] = first.taps | second.taps
        self._paying = Paying()
        self._recording = RecordingTree(tree) if tree is not None and plausible else None
        self._observers = [part for part in (first, second) if isinstance(part, Observer)]

    def untrained(self, vocab: int) -> Fused:
        """A copy whose drafters are untrained and for a target of `vocab` tokens."""
        return Fused(
            first=untrained_form(self.first, vocab),
            second=untrained_form(self.second, vocab),
            tree=self.tree,
            nodes=self.nodes,
            tail=self.tail,
            plausible=self.plausible,
        )

    def smaller(self) -> Fused:
        """A copy with a smaller tree of the first drafter, and smaller drafts of the second."""
        return Fused(
            first=small_form(self.first),
            second=small_form(self.second),
            tree=small_form(self.tree),
            tail=min(self.tail, 1),
            plausible=self.plausible,
        )

    def watched(self, wrap: WrapExpand, wrap_search: WrapSearch | None = None) -> Fused:
        """A copy in which the forward passes that a tree asks for go through `wrap`."""
        first, second = (watched(each, wrap, wrap_search) for each in (self.first, self.second))
        tree = WatchedTree(self.tree, wrap, wrap_search) if self.tree is not None else None
        return Fused(first=first, second=second, tree=tree, nodes=self.nodes, tail=self.tail, plausible=self.plausible)

    def timed(self) -> tuple[Drafter, TreePolicy | None]:
        """The first drafter, and its tree policy."""
        return self.first, self.tree

    def bind(self, target: Target) -> None:
        """Binds both drafters."""
        self.first.bind(target)
        self.second.bind(target)

    def open(self, slots: int, room: int) -> None:
        """Forgets every row."""
        self.first.open(slots, room)
        self.second.open(slots, room)
        self._paying.open()

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns both drafts below root [B], merged into one tree."""
        draft = self.first.propose(root, self._recording or self.tree, context)
        costs, extended = context.costs, context
        if costs is not None:
            valid, _, _ = draft.columns
            extended = replace(context, costs=costs.with_required_nodes(max(map(sum, valid)) - 1))
        copied = self.second.propose(root, None, extended)
        if self._recording is not None:
            copied = pruned(copied, self._recording.records, self.plausible)
        both = draft.merge(copied, self.promise.nodes)
        if self.tail and self._continue is not None:
            leaves, paths = best_paths(draft)
            tails = [tail[: self.tail] for tail in self._continue(paths)]
            both = both.graft(leaves, tails, self.promise.nodes)
        return both if costs is None else self._paying.paying(draft, both, costs)

    def commit(self, committed: Committed) -> None:
        """Passes the commit to both drafters."""
        self.first.commit(committed)
        self.second.commit(committed)
        self._paying.commit(committed)

    def observe(self, cycle: Cycle) -> None:
        """Passes the cycle to the parts that observe."""
        for part in self._observers:
            part.observe(cycle)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.first.keep(rows)
        self.second.keep(rows)
        self._paying.keep(rows.tolist())


def pruned(tree: TokenTree, records: list[Proposals], plausible: float) -> TokenTree:
    """A `top` tree without nodes of drafter probability below `plausible` and without their descendants.

    Nodes without such a probability stay: below nodes that were not expanded, and outside the draft vocabulary.
    """
    valid = tree.valid.tolist()
    for row, (real, record) in enumerate(zip(valid, records, strict=True)):
        paths, parents = paths_of(tree, row), tree.parent[row].tolist()
        children: dict[int, list[int]] = {}
        for node in range(1, len(real)):
            if real[node]:
                children.setdefault(parents[node], []).append(node)
        for parent, nodes in children.items():  # parents come before their children
            found = record.probabilities(paths[parent], [paths[node][-1] for node in nodes])
            for node, probability in zip(nodes, found, strict=True):
                real[node] = real[parent] and (probability is None or probability >= plausible)
    return replace(tree, valid=tree.valid.new_tensor(valid))


def best_paths(tree: TokenTree) -> tuple[list[int], list[list[int]]]:
    """Returns each row's path along first children: its last node, and its tokens below the root."""
    leaves, paths = [], []
    for tokens, parents, real in zip(tree.tokens.tolist(), tree.parent.tolist(), tree.valid.tolist(), strict=True):
        leaf, path = 0, list[int]()
        for node in range(1, len(tokens)):
            if real[node] and parents[node] == leaf:
                leaf = node
                path.append(tokens[node])
        leaves.append(leaf)
        paths.append(path)
    return leaves, paths
