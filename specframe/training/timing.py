"""Timing of training steps: the number of steps within a time limit, and a profile by operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from specframe.kernel.errors import InputError
from specframe.training.trainer import Trainer

WARM = 2
"""Number of warm-up steps before timing, in which caches fill and kernels are chosen."""

TIMED = 3
"""Smallest number of timed steps for a training with a time limit."""

TRIAL = 0.02
"""Share of the planned time that timing may take, if that is more."""

ROWS = 15
"""Operations that are listed; the others are summed."""


def steps_within(trainer: Trainer, minutes: float) -> int:
    """The number of steps that fit into `minutes` at the speed of the first ones; the module is not changed.

    The time of validations is not included.
    """
    before = {name: values.clone() for name, values in trainer.module.state_dict().items()}
    taken, start = 0, 0.0
    while True:
        if taken == WARM:
            start = trainer.settled()
        trainer.take(taken)
        taken += 1
        if taken >= WARM + TIMED and (seconds := trainer.settled() - start) > 60 * TRIAL * minutes:
            break
    trainer.module.load_state_dict(before)
    rate = trainer.processes.mean(torch.tensor((taken - WARM) / seconds, device=trainer.device))
    return max(1, round(60 * minutes * float(rate)))


@dataclass(frozen=True)
class Operation:
    """An operation of PyTorch, without the operations that it calls."""

    name: str
    seconds: float  # per step
    calls: float  # per step


@dataclass(frozen=True)
class StepProfile:
    """The operations of training steps, by the time that they take."""

    steps: int
    tokens: int  # of all steps
    seconds: float  # of all steps, the profiler's own time included
    operations: Sequence[Operation]  # those that take the most first

    def __str__(self) -> str:
        """A table: share, milliseconds and calls a step of each operation."""
        total = sum(operation.seconds for operation in self.operations)
        speed = self.tokens / self.seconds
        rest = self.operations[ROWS:]
        shown = list(self.operations[:ROWS])
        if rest:
            shown.append(Operation("others", sum(o.seconds for o in rest), sum(o.calls for o in rest)))
        lines = [
            f"{self.steps} steps, {self.tokens:,} tokens, {speed:,.0f} tokens/s under the profiler",
            f"{'operation':48} {'share':>6} {'ms/step':>9} {'calls/step':>11}",
        ]
        lines += [f"{o.name[:48]:48} {o.seconds / total:6.1%} {1e3 * o.seconds:9.2f} {o.calls:11,.0f}" for o in shown]
        return "\n".join(lines)


def profile_steps(trainer: Trainer, count: int) -> StepProfile:
    """The profile of a training's next `count` steps, or of the remaining ones; their results are not saved.

    Raises InputError if the training has no step left.
    """
    first = trainer.run_state.step
    warm = min(WARM, max(0, trainer.total - first - 1))
    steps = range(first + warm, min(first + warm + count, trainer.total))
    if not steps:
        raise InputError(f"the training in {trainer.settings.out} is over: there is no step left to profile")
    for step in range(first, first + warm):
        trainer.take(step)
    before = trainer.tokens
    activities = [ProfilerActivity.CPU]
    if trainer.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    start = trainer.settled()
    with profile(activities=activities) as seen:
        for step in steps:
            trainer.take(step)
        seconds = trainer.settled() - start
    on_device = trainer.device.type == "cuda"
    operations = [
        Operation(
            event.key,
            (event.self_device_time_total if on_device else event.self_cpu_time_total) / 1e6 / len(steps),
            event.count / len(steps),
        )
        for event in seen.key_averages()
    ]
    operations.sort(key=lambda operation: -operation.seconds)
    return StepProfile(len(steps), trainer.tokens - before, seconds, operations)
