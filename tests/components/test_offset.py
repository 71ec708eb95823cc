"""Texts at the positions of long ones in training: which entries stay, how far the others jump, and what follows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specframe import InputError
from specframe.components.rollouts.multi_step import MultiStep
from specframe.components.rollouts.shifted import moved, shift
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.neural import NeuralDrafter
from specframe.neural.masks import ANCHORS
from specframe.testing import random_teacher, shake, tiny_target
from specframe_eagle.drafter import Eagle
from specframe_eagle.eagle3 import Eagle3
from specframe_eagle.rollout import TrainingTimeTest
from specframe_falcon.drafter import Falcon
from specframe_self.longspec.drafter import LongSpec

TARGET = tiny_target("llama", vocab=11, size=8, layers=2, dtype=torch.float64)
ROLLOUTS = {
    "eagle": (Eagle, TeacherForced),
    "falcon": (Falcon, TeacherForced),
    "longspec": (LongSpec, TeacherForced),
    "hass": (Eagle, MultiStep),
    "eagle3": (Eagle3, TrainingTimeTest),
}


def bound(kind: type[NeuralDrafter]) -> NeuralDrafter:
    options: dict[type, dict[str, Any]] = {Falcon: {"dropout": 0.0}, Eagle3: {"taps": [0, 1], "own_head": False}}
    drafter = kind(**options.get(kind, {}))
    drafter.bind(TARGET)
    shake(drafter.module)
    drafter.module.train()
    return drafter


@given(length=st.integers(3, 30), offset=st.integers(0, 400), seed=st.integers(0, 999))
def test_a_few_stay_and_the_others_jump_by_one_number(length: int, offset: int, seed: int) -> None:
    drafter = bound(Eagle)
    torch.manual_seed(seed)
    pairs = shift(random_teacher(TARGET, 2, length + 1), drafter.spec)
    torch.manual_seed(seed)
    positions = moved(pairs, offset)
    if offset <= length:
        assert positions is None
        return
    assert positions.shape == (2, length) and torch.equal(positions[0], positions[1])
    jumps = (positions[0] - torch.arange(length)).tolist()
    stay = sum(jump == 0 for jump in jumps) if any(jumps) else 0
    assert stay <= ANCHORS and jumps == [0] * stay + [jumps[-1]] * (length - stay)
    assert 0 <= jumps[-1] <= offset - length and positions.max() < offset
    torch.manual_seed(seed)
    assert torch.equal(moved(pairs, offset), positions), "a step's draws follow from its seed"


def test_all_numbers_of_anchors_and_far_positions_are_drawn() -> None:
    pairs = shift(random_teacher(TARGET, 1, 21), bound(Eagle).spec)
    torch.manual_seed(1)
    drawn = [moved(pairs, 8192)[0] for _ in range(200)]
    assert {int((each == torch.arange(20)).sum()) for each in drawn} == set(range(ANCHORS + 1))
    assert min(int(each[-1]) for each in drawn) < 800 and max(int(each[-1]) for each in drawn) > 7400


@pytest.mark.parametrize("method", ROLLOUTS)
def test_moved_texts_are_unrolled_there(method: str) -> None:
    """All but the first entries at one distance: attention knows distances alone, so a jump of all changes nothing."""
    kind, rollout = ROLLOUTS[method]
    drafter, teacher = bound(kind), random_teacher(TARGET, 2, 14)

    def logits(offset: int, stay: int = 0, jump: int = 0) -> torch.Tensor:
        draws = iter([stay, jump])

        def drawn(most: int, *_: object) -> torch.Tensor:
            known = {ANCHORS + 1, *(offset - length for length in (10, 11, 12, 18))}
            return torch.tensor(next(draws) if offset and most in known else 0)

        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            patch.setattr(torch, "randint", drawn)
            options = {} if rollout is TrainingTimeTest else {"noise": 0.0}
            return rollout(offset=offset, **options)(drafter, teacher, 0.0).logits

    plain = logits(0)
    torch.testing.assert_close(logits(4000, 0, 900), plain, rtol=1e-3, atol=1e-3)
    assert (logits(4000, 2, 900) - plain).abs().max() > 1e-3
    drafter.module.eval()
    assert torch.equal(logits(4000, 2, 900), logits(0)), "validation is of texts as they are"


def test_no_step_of_eagle3_stands_beyond_the_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, seen, teacher = bound(Eagle3), list[torch.Tensor](), random_teacher(TARGET, 2, 14)
    layer = drafter.network.layer
    compute = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x, places, *rest: (seen.append(places), compute(x, places, *rest))[1])
    monkeypatch.setattr(torch, "randint", lambda most, *_: torch.tensor(most - 1 if most > ANCHORS + 1 else 0))
    TrainingTimeTest(steps=7, offset=4000)(drafter, teacher, 0.0)
    assert len(seen) == 7 and int(torch.stack(seen).max()) == 3999
    seen.clear()
    TrainingTimeTest(steps=7, offset=19)(drafter, teacher, 0.0)
    assert int(torch.stack(seen).max()) == 18, "too short to move: 13 entries and 6 further steps"


@pytest.mark.parametrize("rollout", [TeacherForced, MultiStep, TrainingTimeTest])
def test_a_negative_offset_is_refused(rollout: type) -> None:
    with pytest.raises(InputError, match="offset must not be negative, not -1"):
        rollout(offset=-1)
