"""`specframe train` with a router: the recipe's drafter stays, the router starts afresh and is what is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import specframe
from specframe.cli.main import main

RECIPE = """
specframe: 1
target: {{use: hf, model: zoo://talk-7m}}
drafter: {{use: eagle, weights: {folder}/drafter, head: {{use: router, groups: 8, active: 3}}}}
tree: {{use: dynamic, depth: 3, width: 3, nodes: 8}}
verifier: match
loss: routing
train:
  data: ['{folder}/texts.jsonl']
  rollout: {{use: routing, rollout: {{use: multi-step, steps: 2}}}}
  out: {folder}/router
  steps: 3
  batch: 2
  length: 16
  lr: 1.0e-2
  validation: 0.2
sampling: {{max_new_tokens: 8}}
run: {{prompts: [Hello], repeats: 0}}
"""


@pytest.mark.full
def test_the_second_stage_trains_the_router_on_the_first_stage_s_drafter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "texts.jsonl").write_text(
        "\n".join([json.dumps({"text": "the quick brown fox jumps"[start:]}) for start in range(8)])
    )
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(folder=tmp_path))
    first = specframe.load(recipe, overrides=["drafter.weights=null", "drafter.head=full"]).parts.drafter
    with torch.no_grad():
        for weight in first.module.parameters():
            weight.mul_(1.5)  # different from an untrained one
    first.save(tmp_path / "drafter")

    assert main(["train", str(recipe)]) == 0
    output = capsys.readouterr().out
    assert f"drafter.head.weights={tmp_path / 'router'}" in output
    assert json.loads((tmp_path / "router" / "config.json").read_text())["groups"] == 8
    record = json.loads((tmp_path / "router" / "train.json").read_text())
    assert torch.tensor(record["losses"][-1]["routing"]).isfinite()
    assert record["rollout"]["rollout"]["steps"] == 2, "a resumed run must unroll alike"
    assert any("routing" in entry and "tau" in entry for entry in record["validations"])

    untrained = specframe.load(recipe).parts.drafter
    routed = specframe.load(recipe, overrides=[f"drafter.head.weights={tmp_path / 'router'}"]).parts.drafter
    assert not torch.equal(untrained.module.outer.weight, routed.module.outer.weight)
    for mine, theirs in zip(routed.network.parameters(), first.network.parameters(), strict=True):
        assert torch.equal(mine, theirs.bfloat16().float()), "the drafter is the first stage's, unchanged"
    assert main(["run", str(recipe), f"drafter.head.weights={tmp_path / 'router'}"]) == 0
    assert main(["certify", str(recipe)]) == 0
