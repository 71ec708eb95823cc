"""Losses in pieces: the same values and gradients as of all logits at once, with logits made where they count."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specframe.components.losses import scored as pieces
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.distillation import Distillation
from specframe.components.losses.divergences import LKHybrid, TotalVariation
from specframe.components.losses.feature_regression import FeatureRegression
from specframe.components.losses.scored import scored
from specframe.kernel.predictions import LazyStudent, LazyTeacher
from specframe.kernel.types import Student, Teacher
from specframe_blocks.dflash.d_pace import DPace

VOCAB, WIDTH, BATCH, LENGTH, COUNT = 11, 5, 3, 7, 12
SUPPORT = torch.tensor([0, 2, 3, 7, 10])
LOSSES = {
    "law": CrossEntropy(),
    "text": CrossEntropy(labels="text"),
    "decay": CrossEntropy(decay=0.8),
    "tv": TotalVariation(),
    "lk": LKHybrid(decay=0.9),
    "not pointwise": DPace(loss=CrossEntropy()),
    "distillation": Distillation(alpha=0.7),
    "features": FeatureRegression(),
}


class Head:
    """A frozen LM head that counts the rows it reads."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight, self.rows = weight, 0

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        self.rows += hidden[..., 0].numel()
        return hidden @ self.weight.T


def example(support: torch.Tensor | None, seed: int = 0) -> tuple[LazyStudent, LazyTeacher, Student, Teacher]:
    """A student and its teacher, lazy and whole; levels 1 to 4 of three entries."""
    chance = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=chance, dtype=torch.float64)

    weight, features, hidden = noise(VOCAB, WIDTH), noise(BATCH, LENGTH, WIDTH), noise(BATCH, COUNT, WIDTH)
    tokens = torch.randint(VOCAB, (BATCH, LENGTH), generator=chance)
    mask = torch.rand(BATCH, LENGTH, generator=chance) < 0.7
    logits = features @ weight.T
    normaliser, best = (None, None) if support is None else (logits.logsumexp(-1), logits.argmax(-1))
    rows = weight if support is None else weight[support]
    level = torch.arange(COUNT) % 4 + 1
    position = (torch.arange(COUNT) // 4 + level).expand(BATCH, -1)
    counts = mask.gather(1, position)
    shared = {"position": position, "mask": counts, "level": level, "hidden": hidden.requires_grad_()}
    shared |= {"features": hidden * 2, "support": support}
    lazy = LazyStudent(read=Head(rows), **shared)
    whole = Student(logits=hidden @ rows.T, **shared)
    taught = LazyTeacher(tokens, mask, {"last": features}, Head(rows), support, normaliser, best)
    plain = Teacher(tokens, mask, {"last": features}, features @ rows.T, support, normaliser, best)
    return lazy, taught, whole, plain


@pytest.mark.parametrize("size", [1, 3, 256])
@pytest.mark.parametrize("support", [None, SUPPORT], ids=["vocabulary", "support"])
def test_values_and_gradients_are_those_of_all_logits_at_once(support, size, monkeypatch):
    monkeypatch.setattr(pieces, "PLACES", size)
    for seed in range(3):
        lazy, taught, whole, plain = example(support, seed)
        found, wanted = scored(list(LOSSES.values()), lazy, taught), scored(list(LOSSES.values()), whole, plain)
        for name, one, other in zip(LOSSES, found, wanted, strict=True):
            assert torch.allclose(one, other, atol=1e-6), name
            got, expected = (
                torch.autograd.grad(value, student.hidden, retain_graph=True)[0]
                for value, student in ((one, lazy), (other, whole))
            )
            assert torch.allclose(got, expected, atol=1e-6), name


def test_heads_read_only_what_counts_and_each_position_once():
    lazy, taught, *_ = example(SUPPORT)
    scored([CrossEntropy()], lazy, taught)
    row = torch.arange(BATCH)[:, None] * LENGTH
    assert lazy.unread.rows == int(lazy.mask.sum()) < lazy.mask.numel()
    assert taught.__dict__["read"].rows == len((row + lazy.position)[lazy.mask].unique())
    assert "logits" not in lazy.__dict__ and "logits" not in taught.__dict__


def test_a_student_of_whom_nothing_counts_costs_nothing():
    lazy, taught, *_ = example(SUPPORT)
    silent = LazyStudent(
        position=lazy.position, mask=lazy.mask & False, level=lazy.level, hidden=lazy.hidden, read=lazy.unread
    )
    silent.__dict__["support"] = SUPPORT
    (value,) = scored([CrossEntropy()], silent, taught)
    (gradient,) = torch.autograd.grad(value, lazy.hidden)
    assert value == 0 and not gradient.any()


def test_without_gradients_there_are_values_alone():
    lazy, taught, whole, plain = example(SUPPORT)
    with torch.no_grad():
        (value,) = scored([CrossEntropy()], lazy, taught)
    assert not value.requires_grad
    assert torch.allclose(value, scored([CrossEntropy()], whole, plain)[0], atol=1e-6)


def test_lazy_logits_are_made_when_they_are_read_and_copies_have_them():
    lazy, taught, whole, plain = example(SUPPORT)
    assert torch.equal(lazy.argmax, whole.argmax)
    assert "logits" not in lazy.__dict__
    copied = replace(lazy, mask=~lazy.mask)
    assert torch.allclose(copied.logits, whole.logits) and torch.equal(copied.mask, ~whole.mask)
    assert torch.allclose(taught.logits, plain.logits)
    assert torch.equal(taught.following, torch.cat([plain.tokens[:, 1:], torch.full((BATCH, 1), -1)], 1))


def test_a_copy_has_all_logits_and_parts_of_its_own():
    _, taught, _, plain = example(SUPPORT)
    copied = replace(taught, mask=taught.mask & False)
    assert torch.equal(copied.logits, plain.logits) and not copied.mask.any() and copied.support is taught.support
    places = torch.tensor([3, 1])
    assert torch.equal(copied.part(places).logits, plain.logits.flatten(0, 1)[places][None])
