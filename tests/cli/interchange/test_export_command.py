"""`specframe export`: the folder, what is printed, and one clear line for what cannot be exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from specframe.cli.main import main
from specframe_medusa.medusa import Medusa
from tests.repo.repository import ROOT

SMALL = ROOT / "recipes" / "small"


def test_medusa_s_heads_go_out_with_where_they_came_from(
    own_heads: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder, settings), out = own_heads, tmp_path / "heads"
    command = ["export", str(SMALL / "medusa.yaml"), *settings, "--to", "medusa", "--out", str(out)]
    assert main(command) == 0
    output = capsys.readouterr().out
    assert str(out) in output and "heads" in output and "float16" in output
    made, stored = load_file(out / "medusa_lm_head.safetensors"), load_file(folder / "model.safetensors")
    assert made.keys() == stored.keys() and all(torch.equal(made[n], stored[n].half()) for n in made)
    config = json.loads((out / "config.json").read_text())
    assert config["medusa_num_heads"] == 4 and config["medusa_num_layers"] == 1
    facts = json.loads((out / "specframe.json").read_text())
    assert facts["figures"]["form"] == "medusa" and facts["recipe"]["data"]["drafter"]["use"] == "medusa"
    assert facts["figures"]["trained"]["train.json"]["steps_done"] > 0
    from specframe.components.targets.hf import HFTarget

    target = HFTarget(model="zoo://talk-7m")
    Medusa(weights=str(out)).bind(target)
    assert main(command) == 0, "and again"
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(out) and found["numbers"] == sum(tensor.numel() for tensor in made.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eagle.yaml", "--to", "llama.cpp"], "has no form 'llama.cpp'; it has vllm, sglang, eagle"),
        (["lookup.yaml", "--to", "vllm"], "'lookup' has no form that other programs read"),
        (["eagle.yaml", "--to", "vllm", "drafter.weights=null"], "is untrained"),
        (["medusa.yaml", "--to", "medusa"], "they share an LM head"),
        (["families/eagle3.yaml", "--to", "gguf"], "fc_norm is not known there: train one with fc_norm: false"),
    ],
)
def test_what_cannot_be_exported_is_one_line_and_exit_status_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, *rest = arguments
    assert main(["export", str(SMALL / recipe), *rest, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_another_checkpoint_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["export", str(SMALL / "families" / "eagle3.yaml"), "--to", "vllm", "--out", str(tmp_path)]) == 2
    assert "holds a checkpoint that was not exported here" in capsys.readouterr().err
    assert (tmp_path / "config.json").read_text() == "{}"
