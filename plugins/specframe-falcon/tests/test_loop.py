"""In the whole loop: every tree policy grows on Falcon's blocks, and greedy output stays the target's."""

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
@pytest.mark.parametrize("block", [1, 2, 3])
def test_output_is_the_targets(tree: str, block: int) -> None:
    check_decoding(f"{{use: falcon, block: {block}}}", tree)
