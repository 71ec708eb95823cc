"""A training's figures reach trackers and the recipe's watcher, and neither changes what is trained."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.kernel.errors import InputError
from specframe.training import trackers
from specframe.training.trackers import Trackers, require_trackers
from specframe.training.train import train

EVENTS = ["start", "report", "validated", "finish"]


class Notes:
    """Keeps the events it receives."""

    def __init__(self):
        self.events = []

    def start(self, done, total, note):
        self.events.append(("start", done, total))

    def report(self, step, figures):
        self.events.append(("report", step, dict(figures)))

    def validated(self, step, figures):
        self.events.append(("validated", step, dict(figures)))

    def finish(self, note):
        self.events.append(("finish", note))


@pytest.fixture
def run(make_target, make_drafter, tokenizer, settings):
    def start(**changes):
        target = make_target(vocab=257)
        chosen = replace(settings, rollout=TeacherForced(), steps=4, log_every=2, validate_every=4, **changes)
        drafter = make_drafter(target)
        report = train(target, drafter, [(CrossEntropy(), 1.0, "ce")], chosen, tokenizer=tokenizer)
        return report, drafter.module.state_dict()

    return start


def test_tensorboard_gets_every_figure(run, settings):
    run(log=["tensorboard"])
    (folder,) = {
        path.parent for path in settings.out.rglob("events.out.tfevents*") if path.parent.name != "hparams"
    } & {settings.out / settings.out.name}
    events = EventAccumulator(str(folder)).Reload()
    names = set(events.Tags()["scalars"])
    assert {"ce", "lr", "tokens/s"} <= names and any(name.startswith("validation/") for name in names)
    assert [event.step for event in events.Scalars("ce")] == [2, 4]


def test_a_watcher_of_the_recipe_gets_the_events_in_order(run):
    notes = Notes()
    run(watcher=notes)
    kinds = [event[0] for event in notes.events]
    assert kinds == ["start", "report", "report", "validated", "finish"]
    assert notes.events[1][1] == 2 and "ce" in notes.events[1][2]


def test_watching_changes_nothing_and_is_no_part_of_a_run_s_identity(run, settings):
    _, watched = run(watcher=Notes(), log=["tensorboard"])
    report, again = run()  # resumed: done already
    assert report.steps == 4 and report.resumed == 4
    for name, value in again.items():
        assert value.equal(watched[name])


def test_an_unknown_tracker_is_named_before_anything_is_read(run):
    with pytest.raises(InputError, match=r"there is no tracker tensorbord; did you mean 'tensorboard'"):
        run(log=["tensorbord"])


def test_a_tracker_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(trackers, "get_available_trackers", list)
    with pytest.raises(InputError, match="the package of wandb is not installed"):
        require_trackers(["wandb"])


@pytest.mark.parametrize("elsewhere", [None, "runs"])
def test_weights_and_biases_writes_to_the_training_unless_a_variable_names_a_folder(monkeypatch, tmp_path, elsewhere):
    opened = []

    class Recorded:
        requires_logging_directory = False

        def __init__(self, name, **options):
            opened.append((name, options))

        def store_init_configuration(self, config): ...

    monkeypatch.setitem(trackers.LOGGER_TYPE_TO_CLASS, "wandb", Recorded)
    monkeypatch.delenv("WANDB_DIR", raising=False)
    if elsewhere:
        monkeypatch.setenv("WANDB_DIR", elsewhere)
    Trackers(["wandb"], tmp_path / "mine", {}).start(0, 1, "")
    assert opened == [("mine", {} if elsewhere else {"dir": str(tmp_path / "mine")})]


def test_a_tracker_that_cannot_be_opened_is_one_line(tmp_path):
    place = tmp_path / "file"
    place.write_text("in the way")
    with pytest.raises(InputError, match=r"train\.log: tensorboard cannot be opened: "):
        Trackers(["tensorboard"], place, {}).start(0, 1, "")
