"""PARD's training: a kept mask row predicts what the drafter proposes there, and a trained model drafts with masks."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import specframe
from specframe import CompositionError, InputError
from specframe.components.drafters.mask_tokens import Masks
from specframe.components.drafters.model import ModelDrafter
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.rollouts.text import AlongText, MaskedText
from specframe.components.targets.tiny import random_model
from specframe.components.trees.fixed import Chain
from specframe.kernel.types import Teacher
from specframe.testing import random_teacher, tiny_target
from specframe.training.settings import TrainSettings
from specframe.training.train import train
from specframe.training.validation import measure

VOCAB, MASK, MASKS = 11, 10, 3


def bound() -> tuple[ModelDrafter, torch.nn.Module]:
    model = random_model("llama", vocab=VOCAB, size=8, layers=2, seed=4).double()
    drafter = ModelDrafter.from_model(model, masks=Masks(MASKS, MASK))
    drafter.bind(tiny_target(vocab=VOCAB))
    return drafter, model


@pytest.mark.parametrize("training", [True, False])
@torch.no_grad()
def test_a_row_predicts_what_a_plain_forward_over_text_and_masks_does(training: bool) -> None:
    drafter, plain = bound()
    drafter.module.train(training)
    teacher = random_teacher(tiny_target(vocab=VOCAB), 4, 13)
    torch.manual_seed(0)
    student = MaskedText(keep=0.8)(drafter, teacher, 0.0)
    found = torch.zeros(MASKS + 1, dtype=torch.int64)
    for row in range(4):
        for number, level in enumerate(student.level.tolist()):
            if not student.mask[row, number]:
                continue
            position = int(student.position[row, number])
            place = position - level + 1
            assert teacher.mask[row, position]
            text = torch.cat([teacher.tokens[row, : place + 1], torch.full((level - 1,), MASK)])
            wanted = plain(text[None]).logits[0, -1]
            torch.testing.assert_close(student.logits[row, number], wanted, rtol=1e-5, atol=1e-5)
            found[level - 1] += 1
    assert (found > 0).all() and found[0] == teacher.mask[:, 0 if training else 1 :].sum()
    if not training:
        assert found.tolist() == [int(teacher.mask[:, 1 + level :].sum()) for level in range(MASKS + 1)]


def test_it_learns_is_saved_with_its_token_and_drafts(
    settings: TrainSettings, make_target, tokenizer, tmp_path
) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(f'{{"text": "the cat sat on a mat and saw {name} run"}}' for name in "abcdefghijklmnop"))
    target = make_target(vocab=257)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    drafter = ModelDrafter(fresh=sizes, masks=2, mask_token=256)
    drafter.bind(target)
    changed = {"data": [str(path)], "rollout": MaskedText(), "steps": 20, "length": 32, "lr": 1e-2}
    losses = [(CrossEntropy(labels="text"), 1.0, "cross-entropy")]
    report = train(target, drafter, losses, replace(settings, **changed, validate_every=10), tokenizer=tokenizer)
    assert report.best is not None and 1 <= report.best <= 4
    stored = json.loads((settings.out / "train.json").read_text())["losses"]
    assert stored[-1]["loss"] < 0.95 * stored[0]["loss"]
    assert json.loads((settings.out / "last" / "config.json").read_text())["pard_token"] == 256
    again = ModelDrafter(weights=str(settings.out / "last"), masks=2)
    again.bind(target)
    assert again.masks.token == 256
    pipeline = specframe.compose(target=target, drafter=again, tree=Chain(depth=3), verifier="match")
    found = pipeline.generate([1, 2, 3], max_new_tokens=12)
    assert found.tokens == pipeline.plain().generate([1, 2, 3], max_new_tokens=12).tokens


def test_its_simulated_tau_is_that_of_cycles_and_not_of_a_chain_of_first_levels() -> None:
    drafter, _ = bound()
    drafter.module.eval()
    target = tiny_target(vocab=VOCAB)
    lesson = random_teacher(target, 3, 24)
    everything = Teacher(lesson.tokens, torch.ones_like(lesson.mask), lesson.features, lesson.logits)
    figures = measure(drafter, [everything], [(CrossEntropy(labels="text"), 1.0, "ce")], MaskedText())
    with torch.no_grad():
        student = MaskedText()(drafter, everything, 0.0)
    right = student.argmax == everything.argmax.gather(1, student.position)
    accepted = {}
    for row in range(3):
        for number, level in enumerate(student.level.tolist()):
            place = int(student.position[row, number]) - level + 1
            if student.mask[row, number]:
                accepted[row, place, level] = bool(right[row, number])
    cycles, tokens = 0, 0
    for row in range(3):
        place = 1
        while place < 24:
            level = 1
            while accepted.get((row, place, level), False):
                level += 1
            whole = (row, place, level) in accepted or level > MASKS + 1
            if whole:
                cycles, tokens = cycles + 1, tokens + level
            place += level
    assert figures["tau"] == pytest.approx(tokens / cycles, abs=0.15)


def test_what_it_cannot_train_is_refused() -> None:
    with pytest.raises(InputError, match="masked-text: keep must be"):
        MaskedText(keep=0)
    drafter = ModelDrafter.from_model(random_model("llama", vocab=VOCAB, size=8, layers=1, seed=4).double())
    drafter.bind(tiny_target(vocab=VOCAB))
    lesson = random_teacher(tiny_target(vocab=VOCAB), 1, 5)
    with pytest.raises(CompositionError, match="a drafting model with mask tokens"):
        MaskedText()(drafter, lesson, 0.0)
    with torch.no_grad():
        assert AlongText()(bound()[0], lesson, 0.0).logits.shape == (1, 5, VOCAB)
