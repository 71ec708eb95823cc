"""In the whole loop: every tree policy grows on Falcon's blocks, and greedy output stays the target's."""

import pytest

from specframe.testing import TREES, check_decoding


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("block", [1, 2, 3])
def test_output_is_the_targets(tree: str, block: int) -> None:
    check_decoding(f"{{use: falcon, block: {block}}}", tree)
