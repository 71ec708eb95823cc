"""The distances between steps, by their formula."""

from __future__ import annotations

import math

import coral_reference as reference
import coral_texts as texts
import pytest
import torch

from specframe import CompositionError
from specframe.components.rollouts.multi_step import MultiStep
from specframe.plugin import Student
from specframe_coral.steps import step_distances
from specframe_eagle.drafter import Eagle


def test_it_is_the_mean_surprise_over_the_positions_that_all_steps_have() -> None:
    drafter, teacher = Eagle(), texts.teach(2, 9)
    drafter.bind(texts.target())
    torch.manual_seed(0)
    student = MultiStep(steps=3)(drafter, teacher, 0.0)
    made: dict[tuple[int, int], dict[int, list[float]]] = {}
    for b, m in student.mask.nonzero().tolist():
        spot = made.setdefault((b, int(student.position[b, m])), {})
        spot[int(student.level[m])] = student.features[b, m].tolist()
    shared = [views for views in made.values() if len(views) == 3]
    assert 0 < len(shared) < len(made)
    distances = step_distances(student)
    assert distances.shape == (3, 3)
    for later in (1, 2, 3):
        for earlier in (1, 2, 3):
            wanted = 0.0
            for views in shared if earlier < later else []:
                alike = [math.exp(reference.cosine(views[later], other[earlier]) / 0.07) for other in shared]
                own = math.exp(reference.cosine(views[later], views[earlier]) / 0.07)
                wanted -= math.log(own / sum(alike)) / len(shared)
            assert distances[later - 1, earlier - 1].item() == pytest.approx(wanted, rel=1e-9)


def test_nothing_shared_is_zero_and_no_features_are_refused() -> None:
    logits, position = torch.zeros(1, 2, 3), torch.tensor([[1, 2]])
    student = Student(logits, position, torch.ones(1, 2, dtype=torch.bool), torch.tensor([1, 2]), torch.ones(1, 2, 4))
    assert step_distances(student).tolist() == [[0, 0], [0, 0]]
    with pytest.raises(CompositionError, match="features"):
        step_distances(Student(logits, position, student.mask, student.level))
