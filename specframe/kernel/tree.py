"""A draft: a tree of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from sys import maxsize
from typing import TYPE_CHECKING

from specframe.kernel.transfer import depths_from, numbers_like, packed_like, seen_from

if TYPE_CHECKING:
    from torch import Tensor

Columns = tuple[list[list[bool]], list[list[int]], list[list[int]]]


class Draw(IntEnum):
    """Way in which a node's token was chosen from its parent's law q; stored per node in `TokenTree.draw`."""

    TOP = 0
    """Deterministic given the context: top-k, n-grams, caches. Its law is one-hot."""
    IID = 1
    """An independent draw from q; duplicates among siblings stay."""
    WITHOUT_REPLACEMENT = 2
    """Drawn from q without the earlier siblings that were drawn this way from the same row of q, renormalised.

    Siblings of another draw, or from another row of q, remove nothing. Siblings stand in draw order."""


ALL_DRAWS = frozenset(Draw)


@dataclass(frozen=True)
class TokenTree:
    """A draft: node 0 is the root, the last committed token; parents come before their children.

    Siblings are ordered by index, which is the order in which the verifier tries them. Nodes with `valid`
    False are padding; an invalid node never has valid children.
    """

    tokens: Tensor  # [B, N] int64
    parent: Tensor  # [B, N] int64; parent[:, 0] = -1, otherwise parent < own index
    valid: Tensor  # [B, N] bool
    draw: Tensor  # [B, N] int64, a Draw per node; the root's is meaningless
    levels: int  # maximum depth of any node, padding included (a host number: loops need no host sync)
    q: Tensor | None = None  # [B, P, v] laws the sampled nodes were drawn from
    q_row: Tensor | None = None  # [B, N] int64, row of q that the node's siblings came from
    support: Tensor | None = None  # [v] int64, the tokens of q's columns; None: the whole vocabulary

    @classmethod
    def unpack(cls, packed: Tensor, levels: int, q: Tensor | None = None, support: Tensor | None = None) -> TokenTree:
        """The tree whose fields are views of [5, B, N] int64: tokens, parent, valid, draw and q_row."""
        tokens, parent, valid, draw, q_row = packed.unbind(0)
        return cls(tokens, parent, valid.bool(), draw, levels, q, None if q is None else q_row, support)

    @classmethod
    def of_rows(
        cls, like: Tensor, tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]], levels: int
    ) -> TokenTree:
        """The tree of each row's `top` nodes on the device of `like`; shorter rows end in invalid nodes."""
        return cls.unpack(packed_like(like, tokens, parents), levels)

    @property
    def packed(self) -> Tensor:
        """A copy of tokens, parent, valid, draw and q_row as one tensor, [5, B, N] int64: what `unpack` takes."""
        packed = self.tokens.new_zeros(5, *self.shape)
        packed[0], packed[1], packed[2], packed[3] = self.tokens, self.parent, self.valid, self.draw
        if self.q_row is not None:
            packed[4] = self.q_row
        return packed

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and nodes, B and N."""
        return self.tokens.shape[0], self.tokens.shape[1]

    @property
    def columns(self) -> Columns:
        """Valid, parent and tokens of each row, on the host."""
        return self.valid.tolist(), self.parent.tolist(), self.tokens.tolist()

    @cached_property
    def ancestors(self) -> Tensor:
        """Nodes visible to each node: [B, N, N] bool, [b, i, j] True if j is i or an ancestor of i."""
        if self.parent.is_cpu and len(self.parent):
            return ancestors_on_host(self.parent)
        return ancestors_of(self.parent, self.levels)

    @cached_property
    def depth(self) -> Tensor:
        """The number of edges between the root and each node: [B, N] int64."""
        if self.parent.is_cpu:
            return depth_on_host(self.parent)
        return depth_of(self.ancestors)

    def take(self, rows: Tensor) -> TokenTree:
        """The trees of these rows of the batch, int64 [R], in this order."""
        q = None if self.q is None else self.q[rows]
        return TokenTree.unpack(self.packed[:, rows], self.levels, q, self.support)

    def whole(self, vocab: int) -> TokenTree:
        """Returns this tree with its laws over the whole vocabulary: q is [B, P, V], and there is no support."""
        if self.q is None or self.support is None:
            return self
        q = self.q.new_zeros(*self.q.shape[:2], vocab).index_copy_(2, self.support, self.q)
        return replace(self, q=q, support=None)

    def merge(self, other: TokenTree, nodes: int | None = None) -> TokenTree:
        """Returns this tree with the nodes of another `top` tree below the same root; common prefixes are merged.

        This tree's nodes keep their indices; the new nodes of the other tree follow in its order, as long as a row has
        at most `nodes` of them, the root included. Sampled nodes are left as they are: nothing is merged into them,
        because a sampled node that another tree replaced or removed would no longer have its recorded law. Raises
        ValueError if the other tree has sampled nodes.
        """
        return _merge(self, other, nodes)

    def graft(self, leaves: Sequence[int], chains: Sequence[Sequence[int]], nodes: int | None = None) -> TokenTree:
        """Returns this tree with a chain of `top` nodes below node `leaves[row]` of each row, up to `nodes` nodes."""
        return _graft(self, leaves, chains, nodes)

    def only(self, nodes: Sequence[Sequence[int]]) -> TokenTree:
        """Returns the tree of these nodes of each row, given with all ancestors; shorter rows end in invalid nodes."""
        return _only(self, nodes)

    @classmethod
    def root_only(cls, root: Tensor) -> TokenTree:
        """A tree of the root alone, for root [B]: verifying it is plain autoregressive decoding."""
        tokens = root[:, None]
        none, top = tokens.new_full(tokens.shape, -1), tokens.new_zeros(tokens.shape)
        return cls(tokens, none, valid=none.bool(), draw=top, levels=0)


def ancestors_of(parent: Tensor, levels: int) -> Tensor:
    """`TokenTree.ancestors` of trees with parents [B, N] and `levels` levels, without a host sync."""
    batch, count = parent.shape
    own = parent.new_ones(count).diag().bool()  # [N, N]
    rows = parent.clamp(min=0)[:, :, None].expand(batch, count, count)
    seen = own.expand(batch, count, count)
    for _ in range(levels):
        seen = seen.gather(1, rows) | own  # [B, N, N]
    return seen


def depth_of(ancestors: Tensor) -> Tensor:
    """`TokenTree.depth` of trees with ancestors [B, N, N], without a host sync."""
    return ancestors.sum(-1) - 1


def ancestors_on_host(parent: Tensor) -> Tensor:
    """`TokenTree.ancestors` for parents [B, N], B at least 1, on the host: faster than launching a kernel."""
    batch, count = parent.shape
    found = parent.new_zeros(batch, count, count).bool()
    found.numpy().data.cast("B")[:] = seen_from(parent.tolist())
    return found


def depth_on_host(parent: Tensor) -> Tensor:
    """`TokenTree.depth` for parents [B, N], on the host."""
    return numbers_like(parent, [depths_from(row) for row in parent.tolist()]).view(parent.shape)


def _merge(tree: TokenTree, other: TokenTree, nodes: int | None = None) -> TokenTree:
    """The first tree with the nodes of the second (see `TokenTree.merge`)."""
    if (other.valid & (other.draw != Draw.TOP))[:, 1:].any():
        raise ValueError("only a tree without sampled nodes can be merged into another")
    rows = _rows(tree, nodes)
    for row, real, parents, tokens in zip(rows, *other.columns, strict=True):
        place: dict[int, int | None] = {0: 0}  # their nodes among ours
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            place_of_parent = place.get(parent)
            if real[node] and place_of_parent is not None:
                place[node] = row.add(place_of_parent, token)
    return _grown(tree, rows)


def _graft(
    tree: TokenTree, leaves: Sequence[int], chains: Sequence[Sequence[int]], nodes: int | None = None
) -> TokenTree:
    """The tree with a chain of `top` nodes below a node of each row (see `TokenTree.graft`)."""
    rows = _rows(tree, nodes)
    for row, leaf, chain in zip(rows, leaves, chains, strict=True):
        node: int | None = leaf
        for token in chain:
            node = None if node is None else row.add(node, token)
    return _grown(tree, rows)


def _only(tree: TokenTree, chosen_nodes: Sequence[Sequence[int]]) -> TokenTree:
    """The tree of some nodes (see `TokenTree.only`)."""
    width = max(map(len, chosen_nodes))
    rows, levels = [], 0
    for nodes, parents in zip(chosen_nodes, tree.parent.tolist(), strict=True):
        places = {node: place for place, node in enumerate(nodes)}
        new_parents = [-1, *(places[parents[node]] for node in nodes[1:])]
        levels = max(levels, *depths_from(new_parents))
        rows.append([(*node, 1) for node in zip(nodes, new_parents, strict=True)] + [(0, 0, 0)] * (width - len(nodes)))
    chosen, parent, valid = numbers_like(tree.parent, rows).unbind(-1)  # [B, N]
    packed = tree.packed.gather(2, chosen.expand(5, *chosen.shape)) * valid
    packed[1], packed[2] = parent, valid
    return TokenTree.unpack(packed, levels, tree.q, tree.support)


class _Row:
    """One row of a tree while nodes are added to it on the host."""

    def __init__(self, known: dict[tuple[int, int], int], depths: list[int], most: int) -> None:
        self._known = known  # (parent, token) -> existing `top` node
        self._most = most
        self.depths = depths
        self.width = len(depths)
        self.new: list[tuple[int, int]] = []  # the nodes that were added, (token, parent)

    def add(self, parent: int, token: int) -> int | None:
        """Returns the parent's `top` child with this token, added if it is missing; None if there is no room."""
        found = self._known.get((parent, token))
        if found is None and len(self.new) < self._most:
            found = self._known[parent, token] = self.width + len(self.new)
            self.new.append((token, parent))
            self.depths.append(self.depths[parent] + 1)
        return found


def _rows(tree: TokenTree, nodes: int | None) -> list[_Row]:
    """A tree's rows, each of which may grow to at most `nodes` valid nodes."""
    valid, parents, tokens = tree.columns
    top = (tree.valid & (tree.draw == Draw.TOP)).tolist()
    rows = []
    for mergeable, row_parents, texts, real in zip(top, parents, tokens, valid, strict=True):
        known = {key: node for node, key in enumerate(zip(row_parents, texts, strict=True)) if mergeable[node]}
        rows.append(_Row(known, depths_from(row_parents), maxsize if nodes is None else nodes - sum(real)))
    return rows


def _grown(tree: TokenTree, rows: Sequence[_Row]) -> TokenTree:
    """Returns the tree with each row's new nodes appended; shorter rows end in invalid nodes."""
    fresh = [row.new for row in rows]
    width = max(map(len, fresh), default=0)
    if not width:
        return tree
    levels = max(tree.levels, *(depth for row in rows for depth in row.depths))
    numbers = packed_like(tree.tokens, *([[node[part] for node in row] for row in fresh] for part in (0, 1)))
    old = tree.shape[1]
    packed = numbers.new_empty(5, len(fresh), old + width)
    packed[:, :, :old], packed[:, :, old:] = tree.packed, numbers
    return TokenTree.unpack(packed, levels, tree.q, tree.support)
