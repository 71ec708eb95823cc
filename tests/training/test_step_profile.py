"""A profile of training steps: it counts steps, tokens and operations, and leaves no trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.kernel.errors import InputError
from specframe.training.timing import WARM, Operation, StepProfile, profile_steps
from specframe.training.train import prepared


@pytest.fixture
def trainer(make_target, make_drafter, tokenizer, settings):
    def start(steps):
        target = make_target(vocab=257)
        chosen = replace(settings, steps=steps, rollout=TeacherForced())
        return prepared(target, make_drafter(target), [(CrossEntropy(), 1.0, "ce")], chosen, tokenizer=tokenizer)

    return start


def test_steps_after_the_warm_ones_are_profiled_and_nothing_is_saved(trainer, settings):
    with trainer(10) as started:
        found = profile_steps(started, 3)
        sizes = [int(started.taught.texts.counts[started.order.rows(step)].sum()) for step in range(WARM, WARM + 3)]
    assert found.steps == 3 and found.tokens == sum(sizes)
    times = [operation.seconds for operation in found.operations]
    assert times == sorted(times, reverse=True) and sum(times) * found.steps <= found.seconds * 1.5
    assert any(operation.name == "aten::mm" and operation.calls >= 1 for operation in found.operations)
    assert not list(settings.out.glob("*.safetensors")) and not (settings.out / "train.json").exists()


def test_only_steps_that_are_left_are_profiled(trainer):
    with trainer(1) as started:
        assert profile_steps(started, 5).steps == 1
    with trainer(1) as started:
        started.run_state.step = 1
        with pytest.raises(InputError, match="no step left"):
            profile_steps(started, 1)


def test_the_table_has_shares_and_sums_up_the_rest():
    operations = [Operation(f"op{number}", 0.03 if number == 0 else 0.001, 2) for number in range(20)]
    lines = str(StepProfile(4, 1000, 2.0, operations)).splitlines()
    assert lines[0] == "4 steps, 1,000 tokens, 500 tokens/s under the profiler"
    assert lines[2].split() == ["op0", "61.2%", "30.00", "2"]
    assert lines[-1].split() == ["others", "10.2%", "5.00", "10"]
