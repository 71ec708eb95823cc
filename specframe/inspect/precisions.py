"""What a forward pass costs in each precision that a target can have."""

from __future__ import annotations

from collections.abc import Mapping

from specframe.components.trees.shapes.optimal import Choice, fastest_shape
from specframe.inspect.profile import Profile

PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "float32": {"dtype": "float32", "quantize": "null"},
    "bfloat16": {"dtype": "bfloat16", "quantize": "null"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
    "int4": {"dtype": "bfloat16", "quantize": "int4"},
}
"""The target section's values for each, as overrides say them."""


def fastest_tree(found: Profile, forwards: Mapping[int, float], depth: int) -> Choice | None:
    """The tree that such forward passes make fastest, with the acceptance that was measured; None: plain decoding.

    What a cycle costs besides the forward passes is left out.
    """
    sizes = {size: seconds for size, seconds in forwards.items() if size > 1}
    choice = fastest_shape(
        found.ranks.table,
        draft_seconds=found.draft_seconds,
        cycle_seconds=sizes,
        depth=depth,
        block=found.block,
        off_path=found.ranks.off_path.table,
    )
    return choice if choice.tau / choice.seconds > 1 / forwards[1] else None
