"""A drafting model that is trained: from sizes, along texts and along texts of its own."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import specframe
from specframe.components.drafters.model import ModelDrafter
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.distillation import Distillation
from specframe.components.rollouts.text import AlongText, OnPolicy
from specframe.components.targets.tiny import random_model
from specframe.components.trees.fixed import Chain
from specframe.kernel.errors import CompositionError, InputError, WeightsError
from specframe.kernel.types import Student, Teacher
from specframe.training.progress import Silent
from specframe.training.settings import TrainSettings
from specframe.training.train import train
from specframe.training.validation import LEVELS, Guesses
from specframe_models.alignment.replay import Replay

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
LOSSES = [(Distillation(alpha=1.0), 1.0, "distillation")]


@pytest.fixture
def settings(settings, tmp_path) -> TrainSettings:
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(f'{{"text": "the cat sat on a mat and saw {name} run"}}' for name in "abcdefghijklmnop"))
    return replace(settings, data=[str(path)], rollout=AlongText(), steps=10, length=32, lr=1e-2, validate_every=5)


def fresh(target) -> ModelDrafter:
    drafter = ModelDrafter(fresh=SIZES)
    drafter.bind(target)
    return drafter


@pytest.mark.parametrize("rollout", [AlongText(), OnPolicy(share=0.5), Replay(levels=3)])
def test_a_fresh_model_learns_is_saved_and_drafts(rollout, settings, make_target, tokenizer) -> None:
    target = make_target(vocab=257)
    drafter = fresh(target)
    report = train(target, drafter, LOSSES, replace(settings, rollout=rollout, steps=20), tokenizer=tokenizer)
    assert report.steps == 20 and report.best is not None and 1 <= report.best <= 1 + LEVELS
    losses = json.loads((settings.out / "train.json").read_text())["losses"]
    assert losses[-1]["loss"] < 0.95 * losses[0]["loss"]
    again = ModelDrafter(weights=str(settings.out / "last"))
    again.bind(target)
    stored = load_file(settings.out / "last" / "model.safetensors")
    assert {"config.json", "model.safetensors"} <= {file.name for file in (settings.out / "last").iterdir()}
    torch.testing.assert_close(stored["model.embed_tokens.weight"], drafter.module.get_input_embeddings().weight.data)
    pipeline = specframe.compose(target=target, drafter=again, tree=Chain(depth=3), verifier="match")
    found = pipeline.generate([1, 2, 3], max_new_tokens=12)
    assert found.tokens == pipeline.plain().generate([1, 2, 3], max_new_tokens=12).tokens


@pytest.mark.parametrize(("labels", "asked"), [("text", 0), ("law", 4)])
def test_the_target_is_asked_where_a_loss_reads_its_law(labels, asked, settings, make_target, tokenizer, monkeypatch):
    target = make_target(vocab=257)
    teach, calls = target.teach, []
    monkeypatch.setattr(target, "teach", lambda *texts: calls.append(1) or teach(*texts))
    losses = [(CrossEntropy(labels=labels), 1.0, "cross-entropy")]
    train(target, fresh(target), losses, replace(settings, steps=4, validation=0.0), tokenizer=tokenizer)
    assert len(calls) == asked


@pytest.mark.parametrize("rollout", [OnPolicy(share=0.5), Replay(levels=3, temperature=1.0)])
def test_an_on_policy_run_resumes_bit_for_bit(rollout, settings, make_target, tokenizer) -> None:
    target = make_target(vocab=257)
    own = replace(settings, rollout=rollout)
    whole, parted = replace(own, out=settings.out / "a"), replace(own, out=settings.out / "b")
    train(target, fresh(target), LOSSES, whole, tokenizer=tokenizer)

    class Stop(Silent):
        def report(self, step, figures) -> None:
            if step == 6:
                raise KeyError

    with pytest.raises(KeyError):
        train(target, fresh(target), LOSSES, parted, tokenizer=tokenizer, watcher=Stop())
    train(target, fresh(target), LOSSES, parted, tokenizer=tokenizer)
    one, two = (load_file(each.out / "last" / "model.safetensors") for each in (whole, parted))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_what_the_drafter_writes() -> None:
    """From the first position that counts; cold, it is the greedy continuation, row by row."""
    model = random_model(vocab=11, layers=2, seed=3)
    drafter = ModelDrafter.from_model(model)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [3, 1, 4, 1, 5, 9, 2, 6]])
    mask = torch.zeros(2, 8, dtype=torch.bool)
    mask[0, 2:6], mask[1, 4:7] = True, True
    texts, counted = OnPolicy(temperature=1e-4).rewrite(drafter, tokens, mask)
    for row, first in enumerate((2, 4)):
        assert texts[row, : first + 1].tolist() == tokens[row, : first + 1].tolist()
        assert counted[row].tolist() == [first <= place < 7 for place in range(8)]
        for place in range(first + 1, 8):
            with torch.no_grad():
                assert int(model(texts[row : row + 1, :place]).logits[0, -1].argmax()) == int(texts[row, place])
    same = OnPolicy(share=0).rewrite(drafter, tokens, mask)
    assert same[0] is tokens and same[1] is mask
    unscored, _ = OnPolicy().rewrite(drafter, tokens, torch.zeros_like(mask))
    assert unscored.equal(tokens)


def test_what_follows_an_end_does_not_count() -> None:
    model = random_model(vocab=3, layers=1, seed=3, eos=1)
    torch.manual_seed(0)
    tokens, mask = torch.zeros(16, 24, dtype=torch.int64), torch.ones(16, 24, dtype=torch.bool)
    texts, counted = OnPolicy().rewrite(ModelDrafter.from_model(model), tokens, mask)
    for text, row in zip(texts.tolist(), counted.tolist(), strict=True):
        end = text.index(1, 1) if 1 in text[1:] else 23
        assert row == [place < min(end, 23) for place in range(24)]


def test_sampled_texts_follow_the_model() -> None:
    model = random_model(vocab=3, layers=1, seed=3)
    torch.manual_seed(0)
    texts = ModelDrafter.from_model(model).continue_text(torch.zeros(4000, 2, dtype=torch.int64), torch.ones(4000), 2.0)
    wanted = (model(torch.tensor([[0]])).logits[0, 0].detach() / 2).softmax(-1)
    got = texts[:, 1].bincount(minlength=3) / 4000
    assert float((got - wanted).abs().sum() / 2) < 0.03


def test_runs_are_greedy_chains() -> None:
    """Against cycles walked one by one; a place that does not count ends a chain, and no cycle starts there."""
    torch.manual_seed(0)
    length, vocab = 40, 3
    mask = torch.rand(5, length) < 0.9
    student, target = torch.rand(5, length, vocab), torch.rand(5, length, vocab)
    position = torch.arange(length).expand(5, -1)
    teacher = Teacher(torch.zeros(5, length, dtype=torch.int64), mask, {}, target)
    wanted = torch.zeros(2, LEVELS)
    for row in range(5):
        root = 0
        while root < length:
            if not mask[row, root]:
                root += 1
                continue
            accepted = 0
            while accepted < LEVELS and root + accepted < length and mask[row, root + accepted]:
                wanted[1, accepted] += 1
                if student[row, root + accepted].argmax() != target[row, root + accepted].argmax():
                    break
                wanted[0, accepted] += 1
                accepted += 1
            root += accepted + 1
    found = Guesses.of_texts(Student(student, position, mask, torch.ones(length, dtype=torch.int64)), teacher).counted()
    assert found.tolist() == wanted.tolist()


def test_refusals(settings, make_target, make_drafter, tokenizer, tmp_path, monkeypatch) -> None:
    target = make_target(vocab=257)
    with pytest.raises(InputError, match="needs one of `model`"):
        ModelDrafter()
    with pytest.raises(InputError, match="needs one of `model`"):
        ModelDrafter(model="zoo://talk-7m", fresh=SIZES)
    with pytest.raises(InputError, match="no size 'layers'"):
        ModelDrafter(fresh={"layers": 2})
    with pytest.raises(InputError, match="must be at least 1"):
        ModelDrafter(fresh={"hidden_size": 0})
    with pytest.raises(InputError, match="multiple of num_attention_heads"):
        ModelDrafter(fresh={"hidden_size": 10, "num_attention_heads": 3})
    with pytest.raises(CompositionError, match="target that is a transformers model"):
        specframe.compose(target={"use": "table"}, drafter=ModelDrafter(fresh=SIZES), tree="chain", verifier="match")
    for rollout in (OnPolicy(), Replay()):
        with pytest.raises(CompositionError, match="rewrites the texts cannot use features"):
            own = replace(settings, rollout=rollout, cache=tmp_path / "cache")
            train(target, fresh(target), LOSSES, own, tokenizer=tokenizer)
    with pytest.raises(CompositionError, match="the rollout 'text' trains a drafter of tokens alone"):
        train(target, make_drafter(target), [(CrossEntropy(), 1.0, "ce")], settings, tokenizer=tokenizer)
    for share, temperature in ((2, 1.0), (0.5, 0.0)):
        with pytest.raises(InputError, match="on-policy"):
            OnPolicy(share=share, temperature=temperature)
    drafter = fresh(target)
    drafter.save(tmp_path / "kept")
    before = (tmp_path / "kept" / "model.safetensors").read_bytes()

    def full(*given, **options) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(drafter.module, "save_pretrained", full)
    with pytest.raises(WeightsError, match="cannot write the model"):
        drafter.save(tmp_path / "kept")
    assert (tmp_path / "kept" / "model.safetensors").read_bytes() == before
    assert not list((tmp_path / "kept").glob(".model-*"))
