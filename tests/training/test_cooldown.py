"""A cooldown's branches are the runs that were planned so from the start, bit by bit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from specframe.components.losses.distillation import Distillation
from specframe.components.losses.feature_regression import FeatureRegression
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.kernel.errors import CompositionError, InputError
from specframe.training import schedule
from specframe.training.progress import Silent
from specframe.training.train import train
from specframe_falcon.glancing import Glancing

LOSSES = [(FeatureRegression(), 1.0, "regression"), (Distillation(), 0.1, "distillation")]
FILES = ("model.safetensors", "config.json", "last/model.safetensors")


class Killed(Exception):
    """Stands for a kill."""


class Killing(Silent):
    """Kills at the n-th report, whichever run makes it."""

    def __init__(self, at: int) -> None:
        self.left = at

    def report(self, step, figures) -> None:
        self.left -= 1
        if not self.left:
            raise Killed


@pytest.fixture
def cooling(settings):
    return replace(
        settings, steps=None, warmup=2, schedule="constant", log_every=1, save_every=4, validate_every=5, lr=1e-2
    )


@pytest.fixture
def start(make_target, make_drafter, tokenizer):
    target = make_target(vocab=257)

    def run(settings, watcher=None):
        torch.manual_seed(0)
        drafter = make_drafter(target, dropout=0.2)
        return drafter, train(target, drafter, LOSSES, settings, tokenizer=tokenizer, watcher=watcher)

    return run


def files(folder):
    """The drafters of a folder and the figures of its record."""
    record = json.loads((folder / "train.json").read_text())
    figures = {name: record[name] for name in ("losses", "validations", "tokens", "steps", "best", "settings")}
    return {name: (folder / name).read_bytes() for name in FILES}, figures


@pytest.mark.sampled
@pytest.mark.parametrize("rollout", [TeacherForced(noise=0.1), Glancing()])
def test_branches_are_runs_planned_so_from_the_start(cooling, start, rollout):
    cooling = replace(cooling, rollout=rollout)
    forked = replace(cooling, out=cooling.out / "forked", cooldown={"at": [4000, 1500, 2500], "share": 0.3})
    drafter, report = start(forked)
    ends = []
    for mark, folder in ((1500, "tokens-1500"), (2500, "tokens-2500"), (4000, ".")):
        alone = replace(cooling, out=cooling.out / f"alone-{mark}", cooldown={"at": [mark], "share": 0.3})
        start(alone)
        found, wanted = files(forked.out / folder), files(alone.out)
        assert found[0] == wanted[0]
        for figures in (found[1], wanted[1]):
            figures["settings"].pop("cooldown")
        assert found[1] == wanted[1]
        assert mark <= found[1]["tokens"]
        ends.append(found[1]["steps"])
    assert len(set(ends)) == 3 and report.steps == ends[-1]
    stored, last = drafter.module.state_dict(), load_file(forked.out / "last" / "model.safetensors")
    assert all(torch.equal(stored[name], value) for name, value in last.items()), "the trunk's end"


@pytest.mark.sampled
@pytest.mark.parametrize("at", [3, 8, 14, 20, 23, 26])
def test_killed_and_resumed_runs_leave_the_same_files(cooling, start, at):
    ends = {"at": [1500, 2500, 4000], "share": 0.3}
    whole = replace(cooling, out=cooling.out / "whole", cooldown=ends)
    start(whole)
    other = replace(cooling, out=cooling.out / "killed", cooldown=ends)
    with pytest.raises(Killed):
        start(other, Killing(at))
    start(other)
    for folder in ("tokens-1500", "tokens-2500", "."):
        assert files(whole.out / folder) == files(other.out / folder)


def test_the_rate_is_constant_and_then_falls_in_a_line(cooling):
    cooling = replace(cooling, cooldown={"share": 0.3}, lr=1.0, warmup=0)
    rates = [schedule.learning_rate(cooling, step, 10) for step in range(10)]
    assert rates == pytest.approx([1.0] * 8 + [2 / 3, 1 / 3])
    assert [schedule.progress(cooling, step, 10) for step in (0, 7, 8, 9)] == pytest.approx([0, 0, 1 / 3, 2 / 3])


def test_a_drafter_that_has_not_decayed_is_never_the_best(cooling, start):
    ends = replace(cooling, steps=12, cooldown={"share": 0.3})
    start(ends)
    record = json.loads((ends.out / "train.json").read_text())
    assert [entry["step"] for entry in record["validations"]] == [5, 10, 12]
    assert record["best"] == record["validations"][-1]["tau"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cooldown": {"ends": [1]}}, "no ends"),
        ({"cooldown": {"at": [5, 5]}}, "different numbers"),
        ({"cooldown": {"share": 1.0}}, "share is 1.0"),
        ({"cooldown": {"at": [5, 9]}, "warmup": 0.1}, "in steps"),
        ({"cooldown": {}, "schedule": "cosine"}, "falls by itself"),
    ],
)
def test_cooldowns_are_checked(cooling, change, message):
    with pytest.raises(InputError, match=message):
        replace(cooling, **change)


@pytest.mark.parametrize(
    ("marks", "message"), [([2500, 2501], "no step ends between 2,500"), ([30, 2500], "too few to warm up")]
)
def test_marks_that_no_run_can_have_are_refused(cooling, start, marks, message):
    with pytest.raises(InputError, match=message):
        start(replace(cooling, cooldown={"at": marks}))


def test_a_rollout_that_depends_on_the_steps_before_has_one_end(cooling, start):
    class Counting(TeacherForced):
        """Has to know each step."""

        def begin(self, step, steps):
            pass

    with pytest.raises(CompositionError, match="give one mark"):
        start(replace(cooling, rollout=Counting(), cooldown={"at": [1500, 2500]}))
