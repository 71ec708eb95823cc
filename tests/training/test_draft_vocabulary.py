"""Training over a draft vocabulary: what the cache teaches, batches of similar length, a start that cannot be had."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from specframe.components.heads import Trimmed
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.kernel.errors import CompositionError
from specframe.training import schedule, texts
from specframe.training.processes import Processes
from specframe.training.settings import TrainSettings
from specframe.training.teaching import Cached, OnlineTeachers
from specframe.training.train import train
from specframe_eagle.drafter import Eagle

SUPPORT = torch.tensor([3, 97, 101, 116, 200])


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "texts.jsonl"
    lines = ["the cat sat on a mat", "and saw a dog", "run to the sea at night"] * 4
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    return TrainSettings(
        data=[str(path)],
        rollout=TeacherForced(),
        out=tmp_path / "out",
        cache=tmp_path / "cache",
        steps=30,
        batch=4,
        length=32,
        lr=1e-2,
        schedule="constant",
        validation=0.2,
        log_every=1,
        validate_every=30,
    )


def test_a_cached_teacher_of_a_support_teaches_what_the_whole_one_does(make_target, tokenizer, settings):
    target = make_target(vocab=257)
    target.request(frozenset({"last"}))
    part = texts.load(settings, tokenizer, 257)[0]
    rows = torch.tensor([4, 0, 2])
    whole = OnlineTeachers(target, part)(rows)
    cached = Cached(target, frozenset({"last"}), part, settings.cache, Processes(target.device), SUPPORT)(rows)
    where = whole.mask
    assert torch.equal(cached.mask, where) and torch.equal(cached.support, SUPPORT)
    assert torch.allclose(cached.log_law[where], whole.log_law[..., SUPPORT][where], atol=1e-5)
    assert torch.equal(cached.argmax[where], whole.argmax[where])
    again = Cached(target, frozenset({"last"}), part, settings.cache, Processes(target.device))(rows)
    assert again.support is None and torch.allclose(again.log_law[where], whole.log_law[where], atol=1e-5)


@pytest.mark.parametrize("cached", [True, False])
def test_a_drafter_is_trained_through_a_trimmed_head(make_target, tokenizer, settings, cached):
    target = make_target(vocab=257)
    drafter = Eagle(head=Trimmed(keep=128))
    drafter.bind(target)
    settings = settings if cached else replace(settings, cache=None)
    train(target, drafter, [(CrossEntropy(), 1.0, "ce")], settings, tokenizer=tokenizer)
    record = json.loads((settings.out / "train.json").read_text())
    losses = [entry["ce"] for entry in record["losses"]]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert all(0 <= record["validations"][-1][f"accuracy.{level}"] <= 1 for level in (1,))


def test_a_step_s_texts_are_of_similar_length():
    lengths = torch.randint(10, 400, (1000,), generator=torch.Generator().manual_seed(0))
    order = schedule.Order(lengths, 8, seed=1)
    steps = [order.rows(step) for step in range(125)]
    assert torch.cat(steps).sort().values.equal(torch.arange(1000)), "each text once an epoch"
    padding = 1 - lengths.sum() / sum(8 * lengths[step].max() for step in steps)
    assert padding < 0.1
    means = torch.stack([lengths[step].float().mean() for step in steps])
    assert (means.diff() > 0).float().mean() < 0.7, "and steps are not sorted by it"


def test_a_drafter_without_a_fusion_cannot_be_fitted(make_target, make_drafter, tokenizer, settings):
    target = make_target(vocab=257)
    losses = [(CrossEntropy(), 1.0, "ce")]
    with pytest.raises(CompositionError, match=r"train\.fit"):
        train(target, make_drafter(target), losses, replace(settings, fit=4), tokenizer=tokenizer)
