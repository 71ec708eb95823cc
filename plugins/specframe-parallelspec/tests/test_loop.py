"""In the whole loop: every tree policy grows on groups of any size, and greedy output stays the target's."""

import pytest

from specframe.testing import TREES, check_decoding


@pytest.mark.parametrize("tree", TREES)
def test_output_is_the_targets(tree: str) -> None:
    for options in ("masks: 1", "masks: 2, features: false", "masks: 4"):
        check_decoding(f"{{use: parallelspec, {options}}}", tree)
