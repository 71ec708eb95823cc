"""Training by the rollouts: losses by exit and weight, layers left out, and runs that resume."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest
import torch
from nested_fakes import LAYERS, VOCAB, checkpoint, drafter, model, texts
from safetensors.torch import load_file

import specframe
from specframe import CompositionError, InputError
from specframe.cli.main import main
from specframe.components.drafters.model import ModelDrafter
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.distillation import Distillation
from specframe.components.losses.scored import scored
from specframe.components.rollouts.text import AlongText
from specframe.components.targets.hf import HFTarget
from specframe.plugin import Chunks, Student, Teacher
from specframe.testing import tiny_target
from specframe.training.progress import Silent
from specframe.training.settings import TrainSettings
from specframe.training.train import train
from specframe.training.validation import LEVELS, measure
from specframe_models.nested.rollouts import LayerSkip, Sorted
from specframe_models.nested.schedules import chances, weights


def lesson(batch: int = 3, length: int = 9) -> Teacher:
    """A target's lessons on random texts."""
    target = tiny_target(vocab=VOCAB, dtype=torch.float32)
    return target.teach(torch.randint(VOCAB, (batch, length)), torch.rand(batch, length) < 0.8)


def truncated(whole, depth):
    """The model of the first layers."""
    fewer = copy.deepcopy(whole)
    fewer.model.layers = fewer.model.layers[:depth]
    fewer.config.num_hidden_layers = depth
    return fewer


@pytest.mark.parametrize("loss", [CrossEntropy(labels="text"), Distillation(alpha=0.9)])
def test_the_loss_is_the_weighted_mean_of_smaller_models_losses(loss):
    """Value and gradients, against a truncated model for every exit."""
    trained, teacher = drafter(), lesson()
    rollout = LayerSkip(dropout=0.0, scale=0.5, curriculum="all")
    trained.module.train()
    whole = copy.deepcopy(trained.module)
    (found,) = scored([loss], rollout(trained, teacher, 0.0), teacher)
    found.backward()
    wanted, exits = torch.zeros(()), list(range(2, LAYERS + 1))
    gradients = {name: torch.zeros_like(p) for name, p in whole.named_parameters()}
    for depth, weight in zip(exits, weights(exits, LAYERS, 0.5), strict=True):
        plain = truncated(whole, depth)
        plain.zero_grad()
        logits = plain(teacher.tokens).logits
        place = torch.arange(teacher.tokens.shape[1]).expand_as(teacher.tokens)
        value = weight * loss(Student(logits, place, teacher.mask, torch.ones_like(place[0])), teacher)
        value.backward()
        wanted = wanted + value.detach()
        for name, parameter in plain.named_parameters():
            gradients[name] += 0 if parameter.grad is None else parameter.grad
    torch.testing.assert_close(found.detach(), wanted)
    for name, parameter in trained.module.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-4, atol=1e-5)


def test_sorted_exits_weigh_the_same_and_reach_every_weight():
    trained, teacher = drafter(), lesson()
    made = Sorted(exits=[1, 2, 4])(trained, teacher, 0.0)
    assert isinstance(made, Chunks) and made.weights == [1.0] * 3
    parts = [CrossEntropy()(part(), teacher) for part in made.parts]
    (found,) = scored([CrossEntropy()], made, teacher)
    torch.testing.assert_close(found, sum(parts) / 3)
    found.backward()
    for name, weight in trained.module.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name


def test_layers_are_left_out_as_often_as_the_schedule_has_it(monkeypatch):
    trained, teacher = drafter(), lesson(batch=200, length=2)
    trained.module.train()
    drawn = []
    read = ModelDrafter.read_exits

    def noted(self, tokens, exits, kept=None):
        drawn.append(kept)
        return read(self, tokens, exits, kept)

    monkeypatch.setattr(ModelDrafter, "read_exits", noted)
    rollout = LayerSkip(dropout=0.6, growing=True)
    for step in (0, 5, 10):
        rollout.begin(step, 11)
        drawn.clear()
        for _ in range(10):
            rollout(trained, teacher, 0.0)
        left_out = 1 - torch.cat(drawn, 1).float().mean(1)
        assert left_out.tolist() == pytest.approx(chances(LAYERS, 0.6, step / 10), abs=0.04)
    trained.module.eval()
    drawn.clear()
    made = rollout(trained, teacher, 1.0)
    assert drawn == [None] and len(made.parts) == LAYERS - 1, "a validation reads every exit, of all layers"


def test_a_validation_gives_every_exit_s_tau():
    """Each as that of a drafter of these layers alone."""
    trained, teacher = drafter(), lesson(4, 30)
    trained.module.eval()
    figures = measure(trained, [teacher, teacher], [(CrossEntropy(), 2.0, "ce")], Sorted(exits=[2, 4]))
    alone = [
        measure(
            ModelDrafter.from_model(truncated(model(), depth)), [teacher], [(CrossEntropy(), 2.0, "ce")], AlongText()
        )
        for depth in (2, 4)
    ]
    assert [figures["tau.1"], figures["tau.2"]] == pytest.approx([each["tau"] for each in alone])
    for name in ("tau", "ce", "loss"):
        assert figures[name] == pytest.approx(sum(each[name] for each in alone) / 2)
    assert figures["accuracy.1"] == pytest.approx(alone[1]["accuracy.1"])


@pytest.fixture
def settings(tmp_path) -> TrainSettings:
    rollout = LayerSkip(dropout=0.5, every=2)
    return TrainSettings(
        data=[texts(tmp_path)],
        rollout=rollout,
        out=tmp_path / "out",
        steps=10,
        batch=4,
        length=16,
        lr=1e-3,
        validation=0.0,
        log_every=2,
    )


def test_a_resumed_run_leaves_out_the_same_layers(settings, tmp_path):
    target = HFTarget(model=checkpoint(tmp_path / "model"))
    losses = [(CrossEntropy(labels="text"), 1.0, "ce")]
    whole, parted = replace(settings, out=tmp_path / "a"), replace(settings, out=tmp_path / "b", save_every=3)

    class Stop(Silent):
        def report(self, step, figures) -> None:
            if step == 6:
                raise KeyError

    train(target, drafter(), losses, whole)
    with pytest.raises(KeyError):
        train(target, drafter(), losses, parted, watcher=Stop())
    report = train(target, drafter(), losses, replace(parted, rollout=LayerSkip(dropout=0.5, every=2)))
    assert 0 < report.resumed < 10
    one, two = (load_file(each.out / "last" / "model.safetensors") for each in (whole, parted))
    assert all(torch.equal(one[name], two[name]) for name in one)


RECIPE = """
specframe: 1
target: {{use: hf, model: {model}, dtype: float32}}
drafter: {{use: model, model: {model}}}
tree: {{use: chain, depth: 3}}
verifier: match
loss: [{{use: cross-entropy, labels: text}}]
train:
  {{data: ['{data}'], rollout: {rollout}, out: {out}, steps: 60, batch: 8, length: 16, lr: 1.0e-2,
    validation: 0.1, log_every: 10}}
"""


ROLLOUTS = ["{use: layer-skip, dropout: 0.1, scale: 1.0, every: 2}", "{use: sorted, exits: [2, 4]}"]


@pytest.mark.parametrize("rollout", ROLLOUTS)
def test_by_recipe_from_texts_to_decoding(rollout, tmp_path, capsys):
    """Losses fall; the folder is a target that drafts for itself, and a drafter of two depths."""
    own, out = checkpoint(tmp_path / "model"), tmp_path / "out"
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE.format(model=own, data=texts(tmp_path), rollout=rollout, out=out), encoding="utf-8")
    assert main(["train", str(path)]) == 0
    capsys.readouterr()
    record = json.loads((out / "train.json").read_text(encoding="utf-8"))
    assert record["losses"][-1]["loss"] < 0.7 * record["losses"][0]["loss"]
    taus = [value for name, value in record["validations"][-1].items() if name.startswith("tau.")]
    assert len(taus) == (LAYERS - 1 if "skip" in rollout else 2) and all(1 <= tau <= 1 + LEVELS for tau in taus)
    nested = {"use": "nested", "drafter": {"use": "model", "weights": str(out / "last")}, "exits": [2]}
    for target, part in [(str(out / "last"), {"use": "self", "exit": 2}), (str(out / "last"), nested), (own, nested)]:
        pipeline = specframe.compose(
            target={"use": "hf", "model": target, "dtype": "float32"},
            drafter=part,
            tree={"use": "chain", "depth": 3},
            verifier="match",
            sampling={"max_new_tokens": 12},
        )
        prompts = [[1, 6, 11], [3, 8]]
        found = pipeline.generate(prompts)
        assert found.tokens == pipeline.plain().generate(prompts).tokens
        if target != own:
            assert found.acceptance.accepted > 0


def test_the_drafter_is_trained_as_a_copy_of_the_target_s_first_layers(tmp_path, capsys):
    """The recipe that decodes trains, too: from the target's layers, whatever weights it names; then by the hint."""
    own, out = checkpoint(tmp_path / "model"), tmp_path / "out"
    part = f"{{use: nested, drafter: {{use: model, model: {own}, layers: [0, 2, 3], weights: none/such}}, exits: [1]}}"
    text = RECIPE.format(model=own, data=texts(tmp_path), rollout="{use: sorted, exits: [1, 3]}", out=out)
    path = tmp_path / "recipe.yaml"
    path.write_text(text.replace(f"{{use: model, model: {own}}}", part), encoding="utf-8")
    before = load_file(tmp_path / "model" / "model.safetensors")
    assert main(["train", str(path), "train.steps=12"]) == 0
    hint = capsys.readouterr().out.splitlines()[-1].split()[-1]
    assert hint == f"drafter.drafter.weights={out}"
    after = load_file(out / "model.safetensors")
    assert sum(name.endswith("q_proj.weight") for name in after) == 3
    moved = (after["model.layers.1.mlp.up_proj.weight"] - before["model.layers.2.mlp.up_proj.weight"]).abs().max()
    assert 0 < moved < 0.5
    pipeline = specframe.load(path, overrides=[hint, "sampling.max_new_tokens=12"])
    assert pipeline.parts.drafter.depths == [1, 3]
    assert pipeline.generate([[1, 6, 11]]).tokens == pipeline.plain().generate([[1, 6, 11]]).tokens


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: LayerSkip(dropout=1.0), "from 0 to below 1"),
        (lambda: LayerSkip(scale=0), "scale must be above 0"),
        (lambda: LayerSkip(every=0), "every must be at least 1"),
        (lambda: Sorted(exits=[]), "ascending numbers of layers"),
        (lambda: Sorted(exits=[2, 1]), "ascending numbers of layers"),
    ],
)
def test_wrong_options_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_a_drafter_of_one_depth_is_refused():
    class Feature:
        module = None

    for rollout in (LayerSkip(), Sorted(exits=[1])):
        with pytest.raises(CompositionError, match="several depths, such as the drafter `model`"):
            rollout(Feature(), lesson(), 0.0)
    with pytest.raises(InputError, match="from 1 to 4"):
        Sorted(exits=[5])(drafter(), lesson(), 0.0)
