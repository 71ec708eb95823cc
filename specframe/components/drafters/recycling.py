"""Token Recycling: the target's own second choices, kept and proposed again."""

from __future__ import annotations

from torch import Tensor

from specframe.components.drafters.recycler import Recycler, Scored
from specframe.components.drafters.trie import Trie, as_tree
from specframe.kernel.capabilities import Promise
from specframe.kernel.interfaces import Target, TreePolicy
from specframe.kernel.types import Committed, Context, Cycle, Draw, TokenTree


class Recycling:
    """Proposes below every token the tokens that the target found likely where it last scored that token.

    The tree takes the most probable paths until it has `nodes` nodes. A path's probability is the product of how often
    the successor of each rank was right in this text. Where the paper grows a fixed tree of 80 nodes and starts empty,
    this drafter asks how many nodes are worth scoring and starts with the prompt's scores.

    Source: Token Recycling (Luo et al. 2024, arXiv 2408.08696).

    Options:
        nodes: the most nodes of a tree, the root included
        ranks: the successors kept of each token, at most 8
        floor: the smallest path probability that is proposed
        scored: whether every scored node teaches successors, or those of the accepted path alone
        prompt: whether the prompt's scores are read, which needs a target with an LM head
    """

    def __init__(
        self, *, nodes: int = 32, ranks: int = 8, floor: float = 0.01, scored: Scored = "all", prompt: bool = True
    ) -> None:
        self.promise = Promise(frozenset({Draw.TOP}), nodes)
        self._recycler = Recycler(nodes=nodes, ranks=ranks, floor=floor, scored=scored, prompt=prompt)
        self.taps = self._recycler.taps

    def bind(self, target: Target) -> None:
        """Requests the features from which the prompt's scores are computed."""
        self._recycler.bind(target)

    def open(self, slots: int, room: int) -> None:
        """Forgets every row."""
        self._recycler.open()

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The likeliest paths below root [B]; rows with fewer of them end in invalid nodes."""
        tries = [Trie(token) for token in root.tolist()]
        self._recycler.fill(tries)
        return as_tree(root, tries, context.costs)

    def commit(self, committed: Committed) -> None:
        """Reads the prompts of new rows, which join behind the others."""
        self._recycler.commit(committed)

    def observe(self, cycle: Cycle) -> None:
        """Keeps the cycle's scores."""
        self._recycler.observe(cycle)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._recycler.keep(rows.tolist())
