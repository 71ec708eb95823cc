"""A tree with one path: the draft of the original speculative sampling."""

from __future__ import annotations

from torch import Tensor

from specframe.components.trees.shapes.fill import fill
from specframe.components.trees.shapes.shape import Shape
from specframe.kernel.errors import InputError
from specframe.kernel.types import Context, Draw, Expand, TokenTree


class Chain:
    """One path of `depth` nodes, each the drafter's most probable token or a draw from its law.

    With `draw: iid` this is the draft of Leviathan et al. 2023 (algorithm 1) and Chen et al. 2023
    (algorithm 2). An only child drawn without replacement is the same thing under another name.

    Options:
        depth: how many tokens to draft
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
        """The same policy with two levels, two children a node and four drafted nodes at most."""
        return Chain(depth=min(self.depth, 2), draw=self.draw)

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The chain below root [B]: depth + 1 nodes, in path order."""
        return fill(self.shape, self.draw, expand, root, context)
