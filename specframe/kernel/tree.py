"""A draft: a tree of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property
from sys import maxsize
from typing import TYPE_CHECKING

from specframe.kernel.transfer import HostTrees, depths_from, like_of, numbers_like, seen_from

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.transfer import Columns, TreeSource


class Draw(IntEnum):
    """Way in which a node's token was chosen from its parent's law q; stored per node in `TokenTree.draw`."""

    TOP = 0
    """Deterministic given the context: top-k, n-grams, caches. Its law is one-hot."""
    IID = 1
    """An independent draw from q; duplicates among siblings stay."""
    WITHOUT_REPLACEMENT = 2
    """Drawn from q without the earlier siblings that were drawn this way from the same row of q, renormalised.

    Siblings of another draw, or from another row, take nothing away. Siblings stand in draw order."""


ALL_DRAWS = frozenset(Draw)


@dataclass(frozen=True)
class TokenTree:
    """A draft: node 0 is the root, the last committed token; parents come before their children.

    Sibling order is index order and means something: it is the order in which the verifier tries the
    siblings. Nodes with `valid` False are padding; an invalid node never has valid children.
    """

    tokens: Tensor  # [B, N] int64
    parent: Tensor  # [B, N] int64; parent[:, 0] = -1, otherwise parent < own index
    valid: Tensor  # [B, N] bool
    draw: Tensor  # [B, N] int64, a Draw per node; the root's is meaningless
    levels: int  # no node lies deeper than this, padding included (a host number: loops need no device read)
    q: Tensor | None = None  # [B, P, v] laws the sampled nodes were drawn from
    q_row: Tensor | None = None  # [B, N] int64, row of q that the node's siblings came from
    support: Tensor | None = None  # [v] int64, the tokens of q's columns; None: the whole vocabulary
    source: TreeSource | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, source: TreeSource, levels: int) -> TokenTree:
        """The tree of a source, whose tensors are made once they are asked for."""
        tree = cls.__new__(cls)
        vars(tree).update(source=source, levels=levels)
        return tree

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor:
            """The tensors of a source."""
            if name not in ("tokens", "parent", "valid", "draw") or self.source is None:
                raise AttributeError(f"{type(self).__name__} has no attribute {name}")
            return vars(self).setdefault(name, self.source.tensor(name))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and nodes, B and N."""
        return (self.tokens.shape[0], self.tokens.shape[1]) if self.source is None else self.source.shape

    @property
    def columns(self) -> Columns:
        """Valid, parent and tokens of each row, on the host."""
        if self.source is not None:
            return self.source.columns()
        return self.valid.tolist(), self.parent.tolist(), self.tokens.tolist()

    @cached_property
    def ancestors(self) -> Tensor:
        """Nodes visible to each node, itself and its ancestors: [B, N, N] bool, [b, i, j] = j above or at i."""
        if self.source is not None:
            return self.source.tensor("ancestors")
        if self.parent.is_cpu and len(self.parent):
            return ancestors_on_host(self.parent)
        return ancestors_of(self.parent, self.levels)

    @cached_property
    def depth(self) -> Tensor:
        """The number of edges between the root and each node: [B, N] int64."""
        if self.source is not None:
            return self.source.tensor("depth")
        if self.parent.is_cpu:
            return depth_on_host(self.parent)
        return depth_of(self.ancestors)

    def take(self, rows: Tensor) -> TokenTree:
        """The trees of these rows of the batch, int64 [R], in this order."""
        parts = {name: getattr(self, name)[rows] for name in ("tokens", "parent", "valid", "draw")}
        q = None if self.q is None else self.q[rows]
        q_row = None if self.q_row is None else self.q_row[rows]
        return TokenTree(**parts, levels=self.levels, q=q, q_row=q_row, support=self.support)

    def whole(self, vocab: int) -> TokenTree:
        """The same tree with its laws over the whole vocabulary: q is [B, P, V], and there is no support."""
        if self.q is None or self.support is None:
            return self
        q = self.q.new_zeros(*self.q.shape[:2], vocab).index_copy_(2, self.support, self.q)
        return replace(self, q=q, support=None)

    def merge(self, other: TokenTree, nodes: int | None = None) -> TokenTree:
        """Returns this tree with the nodes of another `top` tree below the same root, common prefixes being one node.

        This tree's nodes keep their indices; the new nodes of the other tree follow in its order, as long as a row has
        at most `nodes` of them, the root included. Sampled nodes are left as they are: nothing is merged into them,
        because a sampled node that another tree replaced or removed would no longer have its recorded law. Raises
        ValueError if the other tree has sampled nodes.
        """
        return _merge(self, other, nodes)

    def graft(self, leaves: Sequence[int], chains: Sequence[Sequence[int]], nodes: int | None = None) -> TokenTree:
        """Returns this tree with a chain of `top` nodes below node `leaves[row]` of each row, up to `nodes` nodes."""
        return _graft(self, leaves, chains, nodes)

    def only(self, kept: Sequence[Sequence[int]]) -> TokenTree:
        """The tree of these nodes of each row, with all above them; rows with fewer end in invalid nodes."""
        return _only(self, kept)

    @classmethod
    def root_only(cls, root: Tensor) -> TokenTree:
        """A tree of the root alone, for root [B]: verifying it is plain autoregressive decoding."""
        if root.is_cpu:
            roots = [[token] for token in root.tolist()]
            return cls.of(HostTrees(root, roots, [[-1]] * len(roots)), levels=0)
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
    """`TokenTree.depth` of trees with ancestors [B, N, N], without a look from the host."""
    return ancestors.sum(-1) - 1


def ancestors_on_host(parent: Tensor) -> Tensor:
    """The same for parents [B, N], at least one row, on the host: it is done before a kernel would have begun."""
    batch, count = parent.shape
    found = parent.new_zeros(batch, count, count).bool()
    found.numpy().data.cast("B")[:] = seen_from(parent.tolist())
    return found


def depth_on_host(parent: Tensor) -> Tensor:
    """`TokenTree.depth` for parents [B, N]."""
    return numbers_like(parent, [depths_from(row) for row in parent.tolist()]).view(parent.shape)


def _merge(tree: TokenTree, other: TokenTree, nodes: int | None = None) -> TokenTree:
    """The first tree with the nodes of the second (see `TokenTree.merge`)."""
    if other.source is None and (other.valid & (other.draw != Draw.TOP))[:, 1:].any():
        raise ValueError("only a tree without sampled nodes can be merged into another")
    rows = _rows(tree, nodes)
    for row, real, parents, tokens in zip(rows, *other.columns, strict=True):
        place: dict[int, int | None] = {0: 0}  # their nodes among ours
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            above = place.get(parent)
            if real[node] and above is not None:
                place[node] = row.add(above, token)
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


def _only(tree: TokenTree, kept: Sequence[Sequence[int]]) -> TokenTree:
    """The tree of some nodes (see `TokenTree.only`)."""
    width = max(map(len, kept))
    rows, levels = [], 0
    for nodes, parents in zip(kept, tree.parent.tolist(), strict=True):
        places = {node: place for place, node in enumerate(nodes)}
        above = [-1, *(places[parents[node]] for node in nodes[1:])]
        depths: list[int] = []
        for up in above:
            depths.append(depths[up] + 1 if depths else 0)
        levels = max(levels, *depths)
        rows.append([(*node, 1) for node in zip(nodes, above, strict=True)] + [(0, 0, 0)] * (width - len(nodes)))
    chosen, parent, valid = numbers_like(tree.parent, rows).unbind(-1)  # [B, N]
    return TokenTree(
        tokens=tree.tokens.gather(1, chosen) * valid,
        parent=parent,
        valid=valid.bool(),
        draw=tree.draw.gather(1, chosen) * valid,
        levels=levels,
        q=tree.q,
        q_row=None if tree.q_row is None else tree.q_row.gather(1, chosen) * valid,
        support=tree.support,
    )


class _Row:
    """One row of a tree, as nodes are added to it on the host."""

    def __init__(self, known: dict[tuple[int, int], int], depths: list[int], most: int) -> None:
        self._known = known  # (parent, token) -> the `top` node that is there
        self._most = most
        self.depths = depths
        self.width = len(depths)
        self.new: list[tuple[int, int]] = []  # the nodes that were added, (token, parent)

    def add(self, parent: int, token: int) -> int | None:
        """The node's `top` child with this token, which is made where it is missing; None where there is no room."""
        found = self._known.get((parent, token))
        if found is None and len(self.new) < self._most:
            found = self._known[parent, token] = self.width + len(self.new)
            self.new.append((token, parent))
            self.depths.append(self.depths[parent] + 1)
        return found


def _rows(tree: TokenTree, nodes: int | None) -> list[_Row]:
    """A tree's rows, each with room for as many nodes as it then has at most `nodes` valid ones."""
    valid, parents, tokens = tree.columns
    top = valid if tree.source is not None else (tree.valid & (tree.draw == Draw.TOP)).tolist()
    rows = []
    for kept, above, texts, real in zip(top, parents, tokens, valid, strict=True):
        known = {key: node for node, key in enumerate(zip(above, texts, strict=True)) if kept[node]}
        rows.append(_Row(known, depths_from(above), maxsize if nodes is None else nodes - sum(real)))
    return rows


def _grown(tree: TokenTree, rows: Sequence[_Row]) -> TokenTree:
    """Returns this tree with the new nodes behind each row's, where rows with fewer end invalid."""
    fresh = [row.new for row in rows]
    width = max(map(len, fresh), default=0)
    if not width:
        return tree
    levels = max(tree.levels, *(depth for row in rows for depth in row.depths))
    if tree.source is not None:
        real, above, texts = tree.columns
        source = HostTrees(
            like_of(tree.source),
            [[*own, *(token for token, _ in new)] for own, new in zip(texts, fresh, strict=True)],
            [[*own, *(parent for _, parent in new)] for own, new in zip(above, fresh, strict=True)],
            [[*own, *[True] * len(new)] for own, new in zip(real, fresh, strict=True)],
        )
        return TokenTree.of(source, levels)
    padded = [[(*node, 1) for node in row] + [(0, 0, 0)] * (width - len(row)) for row in fresh]
    tokens, parent, valid = numbers_like(tree.tokens, padded).view(len(fresh), width, 3).unbind(-1)  # [B, new]
    draw = tokens * 0 + Draw.TOP

    def joined(old: Tensor, new: Tensor) -> Tensor:
        both = old.new_zeros(len(old), old.shape[1] + width)
        both[:, : old.shape[1]], both[:, old.shape[1] :] = old, new
        return both

    return TokenTree(
        tokens=joined(tree.tokens, tokens),
        parent=joined(tree.parent, parent),
        valid=joined(tree.valid, valid.bool()),
        draw=joined(tree.draw, draw),
        levels=levels,
        q=tree.q,
        q_row=None if tree.q_row is None else joined(tree.q_row, tokens * 0),
        support=tree.support,
    )
