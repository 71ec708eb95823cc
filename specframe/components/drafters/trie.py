"""A draft of one row on the host, grown node by node, and the batch's tree built from several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from specframe.kernel.costs import Costs
from specframe.kernel.types import TokenTree


class Trie:
    """A token tree with distinct siblings; node 0 is the root, and parents come before their children."""

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self.depths = [0]
        self.chances = [1.0]
        """Estimated acceptance probability of each node; nodes of probability 1 are never left out."""
        self._children: list[dict[int, int]] = [{}]

    def __len__(self) -> int:
        """The number of nodes, the root included."""
        return len(self.tokens)

    def find(self, node: int, token: int) -> int | None:
        """The node's child with this token, or None."""
        return self._children[node].get(token)

    def add(self, node: int, token: int, chance: float = 1.0) -> int:
        """The node's child with this token, added if missing; keeps the higher of two chances."""
        found = self._children[node].get(token)
        if found is None:
            found = self._children[node][token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(node)
            self.depths.append(self.depths[node] + 1)
            self.chances.append(chance)
            self._children.append({})
        elif chance > self.chances[found]:
            self.chances[found] = chance
        return found

    def add_path(self, tokens: Iterable[int], node: int = 0) -> int:
        """The last node of a path of tokens below a node; missing nodes are added."""
        for token in tokens:
            node = self.add(node, token)
        return node

    def ranked(self) -> list[int]:
        """All nodes except the root, by descending chance; a child's chance is at most its parent's."""
        return sorted(range(1, len(self)), key=self.chances.__getitem__, reverse=True)  # ties: parents come first

    def best(self, count: int) -> Trie:
        """The trie of the root and the given number of nodes with the highest chances."""
        chosen = set(self.ranked()[:count])
        trie, places = Trie(self.tokens[0]), {0: 0}
        for node in range(1, len(self)):
            if node in chosen:
                places[node] = trie.add(places[self.parents[node]], self.tokens[node], self.chances[node])
        return trie

    def first_path(self) -> list[int]:
        """The tokens of the path that takes the first child of every node."""
        path, node = [], 0
        for child in range(1, len(self)):
            if self.parents[child] == node:
                node = child
                path.append(self.tokens[child])
        return path


def as_tree(root: Tensor, tries: Sequence[Trie], costs: Costs | None = None) -> TokenTree:
    """The `top` tree of a batch below root [B], one trie per row; shorter rows end in invalid nodes.

    With costs, only the nodes of each trie that are worth scoring.
    """
    width = max(map(len, tries), default=1)
    if costs is not None and width > 1:
        counts = costs.counts([[trie.chances[node] for node in trie.ranked()] for trie in tries])
        tries = [trie.best(count) for trie, count in zip(tries, counts, strict=True)]
        width = max(map(len, tries))
    if not tries or width == 1:
        return TokenTree.root_only(root)
    levels = max(depth for trie in tries for depth in trie.depths)
    return TokenTree.of_rows(root, [trie.tokens for trie in tries], [trie.parents for trie in tries], levels)
