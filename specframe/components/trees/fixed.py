"""Trees of one fixed shape: chains, and the static trees of EAGLE-1, Medusa, Falcon and Sequoia."""

from __future__ import annotations

from torch import Tensor

from specframe.components.trees.fill import fill
from specframe.components.trees.shape import Shape, dotted, parse
from specframe.kernel.errors import InputError
from specframe.kernel.types import Context, Draw, Expand, TokenTree


class Chain:
    """One path of `depth` nodes, each the drafter's most probable token or a draw from its law.

    With `draw: iid` this is the draft of Leviathan et al. 2023 (algorithm 1) and Chen et al. 2023
    (algorithm 2). For an only child, drawing without replacement is the same as `iid`.

    Options:
                depth: number of tokens to draft
        draw: top (the most probable token) or iid (a draw from the drafter's law)
    """

    def __init__(self, *, depth: int = 4, draw: Draw = Draw.TOP) -> None:
        if depth < 1:
            raise InputError(f"a chain needs a depth of at least 1, got {depth}; to draft nothing use `none`")
        self.depth = depth
        self.draw = draw
        self.shape = Shape.of_widths([1] * depth)
        self.promise = self.shape.promise(draw)

    def smaller(self) -> Chain:
        """A copy of this policy with at most two levels, two children a node and four drafted nodes."""
        return Chain(depth=min(self.depth, 2), draw=self.draw)

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The chain below root [B]: depth + 1 nodes, in path order."""
        return fill(self.shape, self.draw, expand, root, context)


class Fixed:
    """A tree of a given shape; exactly one of `paths` and `widths` gives it.

    `paths` lists every node below the root by the ranks on its path, dotted: "0" is the root's first choice,
    "0.2" the third choice below it (the format of the trees published with Medusa and EAGLE-1). `widths`
    gives the number of children per node, level by level: [4, 2, 1] has 4 + 8 + 8 nodes.

    With `draw: top` ranks count from the parent's most probable token; with `iid` and
    `without_replacement` they are the order of drawing, so no rank may be left out. Nodes are sorted by
    level, then by rank, regardless of the order of the paths. A rank that does not exist (a vocabulary or
    a truncated law smaller than the shape needs) leaves an invalid node.

    `widths` with `without_replacement` is RSD-C (Jeon et al. 2024), recursive speculative decoding with constant
    branching: its Gumbel top-k draws siblings one after the other. With `iid` it is SpecInfer's (Miao et al. 2024)
    sampled tree.

    Options:
        paths: every node by its ranks, like "0.2"; quoted, because YAML would parse a number
        widths: the number of children per node, level by level
        draw: top, iid or without_replacement
    """

    def __init__(
        self, *, paths: list[str] | None = None, widths: list[int] | None = None, draw: Draw = Draw.TOP
    ) -> None:
        if (paths is None) == (widths is None):
            raise InputError("a fixed tree needs exactly one of `paths` and `widths`")
        if widths is not None:
            self.shape = Shape.of_widths(widths)
        else:
            self.shape = Shape([parse(path) for path in paths or []])
        if draw is not Draw.TOP and (gap := self.shape.gap):
            earlier = dotted((*gap[:-1], gap[-1] - 1))
            raise InputError(
                f"path {dotted(gap)!r} comes without {earlier!r}: sampled siblings are ranked by the order of "
                "drawing, so none may be left out"
            )
        self.draw = draw
        self.promise = self.shape.promise(draw)

    def smaller(self) -> Fixed:
        """A copy of this policy with at most two levels, two children a node and four drafted nodes."""
        return Fixed(paths=[dotted(path) for path in self.shape.smaller().paths], draw=self.draw)

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The tree below root [B]: always `nodes` nodes."""
        return fill(self.shape, self.draw, expand, root, context)
