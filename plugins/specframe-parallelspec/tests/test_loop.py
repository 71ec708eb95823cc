"""In the whole loop: every tree policy grows on groups of any size, and greedy output stays the target's."""

import pytest

from specframe.testing import check_decoding

TREES = [
    "{use: chain, depth: 5}",
    "{use: dynamic, depth: 5, width: 3, nodes: 9}",
    "{use: fixed, widths: [2, 2, 1, 1]}",
    "{use: fixed, paths: ['0', '1', '2', '0.0', '0.1', '1.0', '0.0.0', '1.0.0', '0.0.0.0', '0.0.0.0.0']}",
    "{use: fixed, widths: [3, 2, 1, 1], draw: without_replacement}",
]


@pytest.mark.parametrize("tree", TREES)
def test_output_is_the_targets(tree: str) -> None:
    for options in ("masks: 1", "masks: 2, features: false", "masks: 4"):
        check_decoding(f"{{use: parallelspec, {options}}}", tree)
