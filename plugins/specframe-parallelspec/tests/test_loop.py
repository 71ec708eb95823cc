"""In the whole loop: every tree policy grows on groups of any size, and greedy output stays the target's."""

from __future__ import annotations

from pathlib import Path

import pytest

import specframe

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
    "{use: chain, depth: 5}",
    "{use: dynamic, depth: 5, width: 3, nodes: 9}",
    "{use: fixed, widths: [2, 2, 1, 1]}",
    "{use: fixed, paths: ['0', '1', '2', '0.0', '0.1', '1.0', '0.0.0', '1.0.0', '0.0.0.0', '0.0.0.0.0']}",
    "{use: fixed, widths: [3, 2, 1, 1], draw: without_replacement}",
]


@pytest.mark.parametrize("tree", TREES)
def test_output_is_the_targets(tree: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE)
    plain = specframe.load(path).generate(PROMPTS)
    verifier = "verifier.use=" + ("recursive" if "draw" in tree else "match")
    for options in ("masks: 1", "masks: 2, features: false", "masks: 4"):
        drafter = f"drafter={{use: parallelspec, {options}}}"
        drafted = specframe.load(path, overrides=[drafter, f"tree={tree}", verifier]).generate(PROMPTS)
        assert drafted.tokens == plain.tokens
        assert drafted.acceptance.drafted > 0
