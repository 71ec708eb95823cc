"""`specframe train` of a drafter of another vocabulary: along the target's texts, in the drafter's own tokens."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from specframe import CompositionError
from specframe.components.drafters.model import ModelDrafter
from specframe.components.losses.distillation import Distillation
from specframe.components.rollouts.text import AlongText, OnPolicy
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.training.settings import TrainSettings
from specframe.training.train import train
from specframe_models.specdecpp.head import AcceptanceHead
from specframe_models.specdecpp.loss import AcceptanceLoss
from specframe_models.specdecpp.rollout import AcceptanceRollout
from specframe_models.vocabularies.intersection import Intersection
from specframe_models.vocabularies.ngrams import Ngrams

LOSSES = [(Distillation(alpha=1.0), 1.0, "distillation")]
SOURCE = inspect.getsource(inspect)


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<end>"], initial_alphabet=alphabet)
    backend.train_from_iterator([SOURCE], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def parts(wrapper=Intersection, head: bool = False):
    """A random target of 500 tokens, and a drafter of 300 others."""
    own, other = tokenizer(300), tokenizer(500)
    target = HFTarget.from_model(random_model(vocab=len(other), layers=1, seed=3).float(), other)
    inner = ModelDrafter.from_model(
        random_model(vocab=len(own), layers=1, seed=4).float(), own, head=AcceptanceHead() if head else None
    )
    drafter = wrapper(drafter=inner)
    drafter.bind(target)
    return target, drafter, inner


@pytest.fixture
def settings(tmp_path: Path) -> TrainSettings:
    path = tmp_path / "texts.jsonl"
    texts = [SOURCE[place : place + 120] for place in range(0, 1920, 120)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return TrainSettings(
        data=[str(path)],
        rollout=AlongText(),
        out=tmp_path / "out",
        steps=12,
        length=48,
        lr=1e-2,
        validation=0.2,
        validate_every=6,
        log_every=4,
    )


@pytest.mark.parametrize("wrapper", [Intersection, Ngrams])
def test_it_learns_along_the_target_s_texts(wrapper, settings) -> None:
    target, drafter, inner = parts(wrapper)
    report = train(target, drafter, LOSSES, settings)
    losses = json.loads((settings.out / "train.json").read_text())["losses"]
    assert report.steps == 12 and losses[-1]["loss"] < losses[0]["loss"]
    again = ModelDrafter(weights=str(settings.out / "last"))
    stored = again.module.state_dict()
    assert all(torch.equal(stored[name], value) for name, value in inner.module.state_dict().items())


def test_its_acceptance_head_learns(settings) -> None:
    target, drafter, inner = parts(head=True)
    losses = [(AcceptanceLoss(temperature=1.0, rejection=1.0), 1.0, "acceptance")]
    report = train(target, drafter, losses, replace(settings, rollout=AcceptanceRollout(rollout=AlongText())))
    assert report.steps == 12
    assert json.loads((settings.out / "last" / "config.json").read_text())["format"] == "acceptance"
    assert inner.head.module is inner.module


def test_rollouts_that_change_the_texts_are_refused(settings) -> None:
    target, drafter, _ = parts()
    with pytest.raises(CompositionError, match="learns along texts as they are: take the rollout `text`"):
        train(target, drafter, LOSSES, replace(settings, rollout=OnPolicy()))
