"""The start by least squares: the fitted map is the regression's, and the drafter begins with its predictions."""

from __future__ import annotations

from dataclasses import replace

import eagle_texts as texts
import pytest
import torch

from specframe import CompositionError, InputError
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.testing import random_teacher
from specframe.training.start import RIDGE, fit
from specframe.training.texts import Texts
from specframe_eagle.drafter import Eagle

COUNT, LENGTH = 12, 10


def lessons(seed: int = 0) -> tuple[Texts, list]:
    """Random texts of the small target, and what it teaches of each."""
    torch.manual_seed(seed)
    teachers = [random_teacher(texts.target(), 1, LENGTH) for _ in range(COUNT)]
    tokens = torch.cat([teacher.tokens[0] for teacher in teachers]).int()
    mask = torch.cat([teacher.mask[0] for teacher in teachers])
    return Texts(tokens, mask, torch.arange(COUNT + 1) * LENGTH), teachers


def test_the_map_is_the_regression_of_the_next_feature_and_what_the_drafter_begins_with() -> None:
    data, teachers = lessons()
    drafter = Eagle()
    drafter.bind(texts.target())
    share = fit(drafter, texts.target(), data, lambda rows: teachers[int(rows[0])], COUNT)
    given, wanted = [], []
    for teacher in teachers:
        for i in teacher.mask[0, 1:].nonzero().flatten().tolist():
            embedded = texts.target().embed(teacher.tokens[0, i + 1])
            given.append(torch.cat([embedded, teacher.features["last"][0, i], torch.ones(1)]))
            wanted.append(teacher.features["last"][0, i + 1])
    x, y = torch.stack(given).double(), torch.stack(wanted).double()
    squares = x.T @ x
    ridge = torch.diag(RIDGE * squares.diagonal() + RIDGE**2 * squares.diagonal().mean())
    solution = torch.linalg.inv(squares + ridge) @ (x.T @ y)
    assert torch.allclose(drafter.fusion.weight, solution[:-1].T, atol=1e-9)
    assert torch.allclose(drafter.fusion.bias, solution[-1], atol=1e-9)
    explained = 1 - (y - x @ solution).square().sum() / (y - y.mean(0)).square().sum()
    assert share == pytest.approx(explained.item(), abs=1e-9) and share > 0.2
    student = TeacherForced(noise=0.0)(drafter, teachers[0], 0.0)
    pairs = torch.cat([texts.target().embed(teachers[0].tokens[:, 1:]), teachers[0].features["last"][:, :-1]], -1)
    assert torch.allclose(student.features, drafter.fusion(pairs)), "the layer adds nothing yet"
    student.features.square().sum().backward()
    assert all(branch.weight.grad.any() for branch in drafter.branches), "and can begin to"


def test_what_cannot_be_fitted_is_refused() -> None:
    data, teachers = lessons()
    drafter = Eagle(feature_sampling=True)
    drafter.bind(texts.target())
    with pytest.raises(CompositionError, match=r"train\.fit"):
        fit(drafter, texts.target(), data, lambda rows: teachers[int(rows[0])], COUNT)
    drafter = Eagle()
    drafter.bind(texts.target())
    few = [replace(teacher, mask=teacher.mask & (torch.arange(LENGTH) < 2)) for teacher in teachers]
    with pytest.raises(InputError, match="positions that count"):
        fit(drafter, texts.target(), data, lambda rows: few[int(rows[0])], COUNT)
