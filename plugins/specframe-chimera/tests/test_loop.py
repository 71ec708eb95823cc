"""In the whole loop: every tree policy grows on the heads, and output stays the target's."""

from __future__ import annotations

from pathlib import Path

import pytest

import specframe
from specframe.testing import check_drafter, check_plugin
from specframe_chimera.drafter import Chimera

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
    "{use: fixed, paths: ['0', '1', '0.0', '0.1', '1.0', '0.0.0', '0.1.0', '0.0.0.0']}",
    "{use: fixed, widths: [3, 2, 1], draw: without_replacement}",
    "{use: dyspec, depth: 3, width: 2, nodes: 6}",
]
DRAFTERS = ["chimera", "chimera, residual: false, cache: 2, ngram: 2"]


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
    assert bool(drafted.parts.drafter.lookups.total) == ("cache" in drafter)


def test_a_tree_too_deep_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    deep = specframe.load(path, overrides=["drafter={use: chimera, heads: 2}", "tree={use: chain, depth: 3}"])
    with pytest.raises(specframe.CompositionError, match="make the tree at most 2 deep"):
        deep.generate(PROMPTS)


def test_the_package_keeps_its_contracts() -> None:
    check_plugin("specframe-chimera")


def test_the_ablations_and_the_cache_keep_the_contract_of_a_drafter() -> None:
    check_drafter(lambda: Chimera(heads=2, ngram=5, residual=False, cache=2))
