"""Suffix copies and recycled tokens in one tree: training-free drafting for any model."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specframe.components.drafters.recycling import Recycling, Scored
from specframe.components.drafters.suffix import Suffix
from specframe.components.drafters.trie import as_tree
from specframe.kernel.capabilities import Promise
from specframe.kernel.interfaces import Target, TreePolicy
from specframe.kernel.types import Committed, Context, Cycle, Draw, TokenTree


class SuffixRecycling:
    """Proposes the copy of `suffix` together with the likely tokens of `recycling` in one small tree.

    The copy comes first. The likeliest paths of successors are then merged by common prefix until the tree has `nodes`
    nodes; a longer copy is kept whole. Copies are long in repetitive text; successors cover the rest.

    Source: SAM-Decoding combined with Token Recycling (Hu et al. 2024, arXiv 2411.10666), in one tree instead of
    choosing between them.

    Options:
                cap: the largest number of tokens to copy
        doubt: pseudo-count added to the occurrences of a one-token match; a match of m tokens gets doubt / m
        least: the smallest path probability of a copied token
        nodes: the number of nodes of a tree, the root included, up to which successors are added
        ranks: number of successors stored per token, at most 8
        floor: the smallest path probability of a proposed successor
        scored: whether successors are learnt from all scored nodes or only from the accepted path
        prompt: whether the prompt's scores are used, which needs a target with an LM head
    """

    def __init__(
        self,
        *,
        cap: int = 15,
        doubt: float = 2.0,
        least: float = 0.1,
        nodes: int = 16,
        ranks: int = 8,
        floor: float = 0.03,
        scored: Scored = "all",
        prompt: bool = True,
    ) -> None:
        self._suffix = Suffix(cap=cap, doubt=doubt, least=least)
        self._recycling = Recycling(nodes=nodes, ranks=ranks, floor=floor, scored=scored, prompt=prompt)
        self.taps = self._recycling.taps
        self.promise = Promise(frozenset({Draw.TOP}), max(cap + 1, nodes))

    def bind(self, target: Target) -> None:
        """Requests the features from which the prompt's scores are computed."""
        self._recycling.bind(target)

    def open(self, slots: int, room: int) -> None:
        """Forgets every row."""
        self._suffix.open(slots, room)
        self._recycling.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The copy and the successors below root [B]; rows with fewer nodes end in invalid ones."""
        tries = self._suffix.copies(root)
        self._recycling.fill(tries)
        return as_tree(root, tries, context.costs)

    def continued(self, paths: Sequence[Sequence[int]]) -> list[list[int]]:
        """Returns the tokens that would be copied if each row's text were continued by a path."""
        return self._suffix.continued(paths)

    def commit(self, committed: Committed) -> None:
        """Appends the committed tokens and reads the prompts of new rows, which join after the others."""
        self._suffix.commit(committed)
        self._recycling.commit(committed)

    def observe(self, cycle: Cycle) -> None:
        """Keeps the cycle's scores."""
        self._recycling.observe(cycle)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._suffix.keep(rows)
        self._recycling.keep(rows)
