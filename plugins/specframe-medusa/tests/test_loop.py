"""In the whole loop: every tree policy grows on the heads, and greedy output stays the target's."""

import pytest

import specframe
from specframe.components.trees.policies.chain import Chain
from specframe.testing import TREES, check_decoding, check_drafter, check_plugin
from specframe_medusa.hydra import Hydra
from specframe_medusa.shapes import published_shape

TREES_AND_THE_PAPERS = [*TREES, f"{{use: fixed, paths: {published_shape()}}}"]
DRAFTERS = ["medusa", "hydra", "hydra, prefix: true, layers: 2"]


@pytest.mark.parametrize("tree", TREES_AND_THE_PAPERS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_output_is_the_targets(tree: str, drafter: str) -> None:
    check_decoding(f"{{use: {drafter}}}", tree)


def test_a_tree_too_deep_is_one_clear_line() -> None:
    with pytest.raises(specframe.RecipeError, match="make the tree at most 2 deep"):
        check_decoding("{use: medusa, heads: 2}", "{use: chain, depth: 3}")
    pipeline = check_decoding("{use: medusa, heads: 2}", "{use: chain, depth: 2}")
    with pytest.raises(specframe.CompositionError, match="make the tree at most 2 deep"):
        pipeline.with_parts(tree=Chain(depth=3)).generate([1, 2])


def test_the_package_keeps_its_contracts() -> None:
    check_plugin("specframe-medusa")


def test_hydra_plus_keeps_the_contract_of_a_drafter() -> None:
    check_drafter(lambda: Hydra(heads=2, layers=2, prefix=True))
