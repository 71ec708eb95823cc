"""A copy of the text and the target's recycled choices in one tree: drafting for any model, without training."""

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
    """Proposes the copy of `suffix`, with the likely tokens of `recycling` around it, in one small tree.

    The copy comes first. Then the likeliest paths of successors join by common prefix, until the tree has `nodes`
    nodes; a longer copy is kept whole. Copies are long where the text repeats itself, successors cover the rest.

    Source: the pairing of SAM-Decoding with Token Recycling (Hu et al. 2024, arXiv 2411.10666), as one tree in place
    of one or the other.

    Options:
        cap: the most tokens to copy
        doubt: how many occurrences a match of one token is doubted by; a longer one by its share of them
        least: the smallest path probability that is copied
        nodes: the nodes of a tree, the root included, up to which successors are added
        ranks: the successors kept of each token, at most 8
        floor: the smallest path probability of a successor that is proposed
        scored: whether every scored node teaches successors, or those of the accepted path alone
        prompt: whether the prompt's scores are read, which needs a target with an LM head
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
        """Returns the tokens that would be copied if each row's text went on by a path."""
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
