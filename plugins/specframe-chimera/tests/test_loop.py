"""In the whole loop: every tree policy grows on the heads, and greedy output stays the target's."""

import pytest

from specframe.testing import TREES, check_decoding, check_depth, check_drafter, check_plugin
from specframe_chimera.drafter import Chimera

DRAFTERS = ["chimera", "chimera, residual: false, cache: 2, ngram: 2"]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_output_is_the_targets(tree: str, drafter: str) -> None:
    pipeline = check_decoding(f"{{use: {drafter}}}", tree)
    assert bool(pipeline.parts.drafter.lookups.total) == ("cache" in drafter)


def test_a_tree_too_deep_is_one_clear_line() -> None:
    check_depth("{use: chimera, heads: 2}", 2)


def test_the_package_keeps_its_contracts() -> None:
    check_plugin("specframe-chimera")


def test_the_ablations_and_the_cache_keep_the_contract_of_a_drafter() -> None:
    check_drafter(lambda: Chimera(heads=2, ngram=5, residual=False, cache=2))
