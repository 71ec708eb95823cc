"""Costs of forward passes in each precision, and the tree that follows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specframe.cli.main import main
from specframe.components.targets.hf import HFTarget
from specframe.components.trees.calibration import Calibration
from specframe.decoding.costs import time_forwards
from specframe.inspect import precisions
from specframe.inspect.precisions import PRECISIONS, fastest_tree, section, time_threads
from specframe.inspect.profile import Profile, Ranks, Shares
from tests.small_gguf import write_gguf


@pytest.fixture
def measured() -> Profile:
    """A drafter whose first choice is accepted 7 times of 10, its second once."""
    shares = Shares(visits=[[100, 100]] * 3, accepted=[[70, 10]] * 3)
    calibration = Calibration((1.0,))
    return Profile(
        Ranks(shares, shares),
        draft_seconds=0.001,
        block=1,
        cycle_seconds={},
        calibration=calibration,
        rows=1,
        context=0.0,
    )


def test_every_size_is_timed(tmp_path: Path):
    target = HFTarget(model=str(write_gguf(tmp_path / "small.gguf", context=256)), device="cpu", quantize="int8")
    found = time_forwards(target, {1, 4, 8})
    assert list(found) == [1, 4, 8] and min(found.values()) > 0


@pytest.mark.parametrize(("forwards", "nodes"), [({1: 0.01, 4: 0.011, 16: 0.1}, 4), ({1: 0.01, 4: 0.05, 8: 0.011}, 8)])
def test_the_tree_follows_what_nodes_cost(forwards, nodes, measured):
    assert fastest_tree(measured, forwards, 3).shape.nodes == nodes


def test_plain_decoding_wins_where_nodes_cost_too_much(measured):
    assert fastest_tree(measured, {1: 0.01, 4: 1.0}, 3) is None
    assert fastest_tree(replace(measured, draft_seconds=1.0), {1: 0.01, 4: 0.011}, 3) is None


def test_the_command_recommends_one(tmp_path: Path, capsys):
    recipe = tmp_path / "recipe.yaml"
    file = write_gguf(tmp_path / "small.gguf", blocks="Q4_1", context=256)
    recipe.write_text(
        f"target: {{use: hf, model: '{file}'}}\ndrafter: {{use: model, model: '{file}'}}\n"
        "tree: {use: chain, depth: 2}\nverifier: match\nsampling: {max_new_tokens: 8}\nrun: {prompts: [abab, baba]}\n"
    )
    assert main(["profile", str(recipe), "--precisions", "--sizes", "1,4", "--depth", "2", "--width", "2"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name}  " in printed for name in PRECISIONS if "compiled" not in name)
    assert "compiled" not in printed, "that takes minutes, and is timed where the recipe compiles"
    assert "\ntarget: {dtype: " in printed and "\n1 thread: 1 node " in printed


def test_a_section_has_what_is_not_the_default():
    assert section("float32") == "dtype: float32"
    assert section("bfloat16, native") == "dtype: bfloat16, native: true"
    assert section("int4") == "dtype: bfloat16, quantize: int4"


def test_threads_are_left_as_they_were(monkeypatch):
    def threads(target: object, sizes: set[int]) -> dict[int, float]:
        return dict.fromkeys(sizes, float(torch.get_num_threads()))

    monkeypatch.setattr(precisions, "time_forwards", threads)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert time_threads(None, 8) == {1: {1: 1.0, 8: 1.0}, 2: {1: 2.0, 8: 2.0}, 3: {1: 3.0, 8: 3.0}}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_target_without_precisions_is_one_line(tmp_path: Path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "target: table\ndrafter: {use: model, model: 'zoo://talk-7m'}\ntree: {use: chain, depth: 2}\nverifier: match\n"
        "run: {prompts: [abab]}\n"
    )
    assert main(["profile", str(recipe), "--precisions"]) == 2
    assert "Traceback" not in capsys.readouterr().err
