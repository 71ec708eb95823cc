"""In the whole loop: every tree policy grows on the heads, and greedy output stays the target's."""

from __future__ import annotations

from pathlib import Path

import pytest

import specframe
from specframe.testing import check_drafter, check_plugin
from specframe_medusa.hydra import Hydra
from specframe_medusa.shapes import published_shape

PROMPTS = [[1, 2, 3], [0], [5, 6]]
RECIPE = """
specframe: 1
target: {use: table, vocab: 7, seed: 3}
drafter: {use: none}
verifier: {use: match}
sampling: {temperature: 0.0, max_new_tokens: 12}
run: {batch: 3}
"""
TREES = [
    "{use: chain, depth: 4}",
    "{use: dynamic, depth: 4, width: 3, nodes: 9}",
    "{use: fixed, widths: [2, 2, 1, 1]}",
    f"{{use: fixed, paths: {published_shape()}}}",
    "{use: fixed, widths: [3, 2, 1], draw: without_replacement}",
]
DRAFTERS = ["medusa", "hydra", "hydra, prefix: true, layers: 2"]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_output_is_the_targets(tree: str, drafter: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    plain = specframe.load(path).generate(PROMPTS)
    verifier = "verifier.use=" + ("recursive" if "draw" in tree else "match")
    drafted = specframe.load(path, overrides=[f"drafter={{use: {drafter}}}", f"tree={tree}", verifier])
    result = drafted.generate(PROMPTS)
    assert result.tokens == plain.tokens
    assert result.acceptance.drafted > 0


def test_a_tree_too_deep_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    deep = specframe.load(path, overrides=["drafter={use: medusa, heads: 2}", "tree={use: chain, depth: 3}"])
    with pytest.raises(specframe.CompositionError, match="make the tree at most 2 deep"):
        deep.generate(PROMPTS)


def test_the_package_keeps_its_contracts() -> None:
    check_plugin("specframe-medusa")


def test_hydra_plus_keeps_the_contract_of_a_drafter() -> None:
    check_drafter(lambda: Hydra(heads=2, layers=2, prefix=True))
