"""A drafter with three taps, a norm of each and an LM head of its own: decoded, trained, stored and certified."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import specframe
from specframe.cli.main import main
from specframe.components.targets.hf import HFTarget
from specframe.neural import FeatureNetwork, checkpoint
from specframe.testing import GivenSession, GrowingTree, check_drafter, random_teacher, shake, tiny_target
from tests.plugins_author.three_taps import ThreeTaps

HERE = Path(__file__).parent
LINES = 120
VOCAB, SIZE = 11, 8
RECIPE = """
specframe: 1
target: {{use: hf, model: zoo://talk-7m}}
drafter: {{use: ./three_taps.py:ThreeTaps, tokens: 1024}}
tree: {{use: dynamic, depth: 3, width: 3, nodes: 8}}
verifier: match
loss: cross-entropy
train:
  data: ['{folder}/texts.jsonl']
  rollout: {{use: multi-step, steps: 2}}
  out: {folder}/weights
  steps: 6
  batch: 4
  length: 24
  lr: 1.0e-3
  log_every: 1
  validation: 0.2
sampling: {{max_new_tokens: 12}}
run: {{prompts: [Hello], repeats: 0}}
"""


def target(layers: int = 4) -> HFTarget:
    return tiny_target(vocab=VOCAB, size=SIZE, layers=layers)


def bound(tokens: int = 5) -> ThreeTaps:
    drafter = ThreeTaps(tokens=tokens)
    drafter.bind(target())
    shake(drafter.module)
    return drafter


def test_it_is_short():
    lines = (HERE / "three_taps.py").read_text(encoding="utf-8").splitlines()
    assert len(lines) < LINES


@torch.no_grad()
def test_it_reads_three_taps_each_through_its_norm():
    drafter, teacher = bound(), random_teacher(target(), 2, 8)
    drafter.target.request(drafter.taps)
    assert drafter.taps == {"layer.0", "layer.2", "last"}
    teacher = random_teacher(drafter.target, 2, 8)
    network = drafter.network
    parts = []
    for tap, norm in zip(network.spec.taps, network.fusion.norms, strict=True):
        x = teacher.features[tap]
        parts.append(norm.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt())
    wanted = torch.cat(parts, -1) @ network.fusion.fc.weight.T
    side_by_side = torch.cat([teacher.features[tap] for tap in network.spec.taps], -1)
    torch.testing.assert_close(drafter.fuse(side_by_side), wanted, rtol=1e-6, atol=1e-6)


@torch.no_grad()
def test_decoding_is_its_forward_over_the_whole_text():
    drafter = bound()
    teacher = random_teacher(drafter.target, 3, 20)
    session = GivenSession.of(teacher)
    drafter.open(3, 30)
    for cycle, counts in enumerate([[5, 1, 9], [1, 3, 2], [2, 1, 1]]):
        drafter.commit((session.advance if cycle else session.admit)(counts))
        tree = GrowingTree(session.root, VOCAB, cycle)
        root = drafter.expand(tree.frontier([0])).logits
        node = tree.add(0)
        below = drafter.expand(tree.frontier([node])).logits
        for row in range(3):
            taps = torch.cat([session.tap(tap)[row] for tap in drafter.spec.taps], -1)
            features, tokens = drafter.fuse(taps[None]), session.tokens[row][None]
            predicted = drafter.unroll(features, tokens)
            torch.testing.assert_close(root[row, 0], drafter.read(predicted)[0, -1], rtol=1e-6, atol=1e-6)
            features = torch.cat([features, predicted.features[:, -1:, 0]], 1)
            tokens = torch.cat([tokens, tree.tokens[row : row + 1, node : node + 1]], 1)
            wanted = drafter.read(drafter.unroll(features, tokens))[0, -1]
            torch.testing.assert_close(below[row, 0], wanted, rtol=1e-6, atol=1e-6)


def test_what_it_proposes_is_of_its_own_tokens():
    drafter, session = bound(tokens=5), GivenSession.of(random_teacher(bound().target, 1, 9))
    assert drafter.support.tolist() == [0, 1, 2, 3, 4]
    drafter.open(1, 20)
    drafter.commit(session.admit([4]))
    proposal = drafter.expand(GrowingTree(session.root, VOCAB).frontier([0]))
    assert proposal.logits.shape == (1, 1, 1, 5) and proposal.support.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("tokens", [2, 3])
def test_it_keeps_the_contract_of_drafters(tokens):
    check_drafter(lambda: ThreeTaps(tokens=tokens))


@pytest.mark.full
def test_it_trains_by_recipe_and_what_is_stored_decodes_and_is_certified(tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(folder=tmp_path), encoding="utf-8")
    (tmp_path / "three_taps.py").write_text((HERE / "three_taps.py").read_text(encoding="utf-8"), encoding="utf-8")
    texts = [f"the quick brown fox jumps over the lazy dog number {number} of ten" for number in range(20)]
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    assert main(["train", str(recipe)]) == 0
    losses = json.loads((tmp_path / "weights" / "train.json").read_text())["losses"]
    assert losses[-1]["loss"] < losses[0]["loss"]
    config = checkpoint.read_config(tmp_path / "weights")
    assert (config["format"], config["tokens"]) == ("three_taps", 1024)
    assert checkpoint.shapes(tmp_path / "weights")["lm_head.weight"][0] == 1024
    weights = f"drafter.weights={tmp_path / 'weights'}"
    plain = specframe.load(recipe, overrides=["drafter=none", "tree=null"]).generate("Hello")
    pipeline = specframe.load(recipe, overrides=[weights])
    assert isinstance(pipeline.parts.drafter.network, FeatureNetwork)
    assert pipeline.generate("Hello").tokens == plain.tokens
    assert main(["certify", str(recipe), weights, "--exact-only"]) == 0, capsys.readouterr().out
