"""A tree policy that records the frontiers given to its drafter and the drafter's proposals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from specframe.components.trees.shape import Path
from specframe.kernel.interfaces import Drafter, Observer, TreePolicy
from specframe.kernel.types import Context, Expand, Frontier, Proposal, SearchBeam, TokenTree

WrapExpand = Callable[[Expand], Expand]
WrapSearch = Callable[[SearchBeam], SearchBeam | None]


def watched(drafter: Drafter, wrap: WrapExpand, wrap_search: WrapSearch | None = None) -> Drafter:
    """A copy, by its method `watched`, of a drafter that builds its own tree; any other drafter unchanged.

    The forward passes of such a drafter's own tree then go through `wrap`, and whole searches through `wrap_search`.
    """
    copied: Callable[[WrapExpand, WrapSearch | None], Drafter] | None = getattr(drafter, "watched", None)
    return drafter if copied is None else copied(wrap, wrap_search)


class WatchedTree:
    """A tree policy whose drafter's forward passes go through `wrap`; otherwise it behaves as the policy.

    A drafter's own whole searches go through `wrap_search`; without it, the drafter is called level by level.
    """

    def __init__(
        self,
        policy: TreePolicy,
        wrap: WrapExpand,
        wrap_search: WrapSearch | None = None,
    ) -> None:
        self._policy = policy
        self._wrap = wrap
        self._wrap_search = wrap_search
        self.promise = policy.promise
        if isinstance(policy, Observer):  # then this is an Observer, too
            self.open, self.observe, self.keep = policy.open, policy.observe, policy.keep

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The policy's tree."""
        search = context.search
        if search is not None:
            wrapped = None if self._wrap_search is None else self._wrap_search(search)
            context = context.with_search(wrapped)
        return self._policy.grow(self._wrap(expand), root, context)


class RecordingTree(WatchedTree):
    """A tree policy that records its drafter's proposals."""

    def __init__(self, policy: TreePolicy) -> None:
        super().__init__(policy, self._noting)
        self._noted: list[tuple[Frontier, Proposal]] = []
        self.records: list[Proposals] = []
        """The drafter's proposals for the last tree, row by row."""

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The policy's tree."""
        self._noted = []
        draft = super().grow(expand, root, context)
        self.records = [Proposals(self._noted, row) for row in range(len(root))]
        return draft

    @property
    def levels(self) -> set[int]:
        """Numbers of levels of the last tree's proposals: one number if the drafter's `Promise.block` is true."""
        return {proposal.logits.shape[2] for _, proposal in self._noted}

    def _noting(self, expand: Expand) -> Expand:
        def run(frontier: Frontier) -> Proposal:
            self._noted.append((frontier, expand(frontier)))
            return self._noted[-1][1]

        return run


class Proposals:
    """Proposals of a drafter for one row. Nodes are identified by their paths; the root's path is empty."""

    def __init__(self, noted: Sequence[tuple[Frontier, Proposal]], row: int) -> None:
        self._levels: dict[Path, tuple[Proposal, int]] = {}  # path -> the proposal below it, and its place there
        self._row = row
        for frontier, proposal in noted:
            paths = paths_of(frontier.tree, row)
            for place, node in enumerate(frontier.nodes[row].tolist()):
                self._levels[paths[node]] = proposal, place

    def logits_after(self, path: Path) -> Tensor | None:
        """The logits [V] of the level below a path; None if the drafter proposed nothing there."""
        found = self._find(path)
        if found is None:
            return None
        proposal, place, level = found
        part = proposal.logits[self._row, place, level][None, None, None]
        return replace(proposal, logits=part, confidence=None).whole.logits[0, 0, 0]

    def probabilities(self, path: Path, tokens: Sequence[int]) -> list[float | None]:
        """The probabilities of tokens below a path, at temperature 1; None for tokens without a drafter logit."""
        found = self._find(path)
        if found is None:
            return [None] * len(tokens)
        proposal, place, level = found
        law = proposal.logits[self._row, place, level].float().softmax(-1)
        if proposal.support is None:
            return law[list(tokens)].tolist()
        columns = [(proposal.support == token).nonzero().flatten().tolist() for token in tokens]
        return [float(law[column[0]]) if column else None for column in columns]

    def _find(self, path: Path) -> tuple[Proposal, int, int] | None:
        """The proposal with a path's children, and their frontier index and level in it; None without one."""
        ancestor = next((path[:end] for end in reversed(range(len(path) + 1)) if path[:end] in self._levels), None)
        if ancestor is None:
            return None
        proposal, place = self._levels[ancestor]
        level = len(path) - len(ancestor)
        return (proposal, place, level) if level < proposal.logits.shape[2] else None


def paths_of(tree: TokenTree, row: int) -> list[Path]:
    """The tokens from below the root to each node of a row."""
    paths: list[Path] = [()]
    for token, parent in zip(tree.tokens[row].tolist()[1:], tree.parent[row].tolist()[1:], strict=True):
        paths.append((*paths[parent], token))
    return paths
