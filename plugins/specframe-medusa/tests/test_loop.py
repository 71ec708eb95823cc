"""In the whole loop: every tree policy grows on the heads, and greedy output stays the target's."""

import pytest

from specframe.testing import TREES, check_decoding, check_depth, check_drafter, check_plugin
from specframe_medusa.hydra import Hydra
from specframe_medusa.shapes import published_shape

TREES_AND_THE_PAPERS = [*TREES, f"{{use: fixed, paths: {published_shape()}}}"]
DRAFTERS = ["medusa", "hydra", "hydra, prefix: true, layers: 2"]


@pytest.mark.parametrize("tree", TREES_AND_THE_PAPERS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_output_is_the_targets(tree: str, drafter: str) -> None:
    check_decoding(f"{{use: {drafter}}}", tree)


def test_a_tree_too_deep_is_one_clear_line() -> None:
    check_depth("{use: medusa, heads: 2}", 2)


def test_the_package_keeps_its_contracts() -> None:
    check_plugin("specframe-medusa")


def test_hydra_plus_keeps_the_contract_of_a_drafter() -> None:
    check_drafter(lambda: Hydra(heads=2, layers=2, prefix=True))
