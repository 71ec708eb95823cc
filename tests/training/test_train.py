"""Training runs: they learn, resume bit for bit, stop at Ctrl-C, and survive a full disk."""

from __future__ import annotations

import json
import math
import os
import random
import signal
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from specframe.components.losses.distillation import Distillation
from specframe.components.losses.feature_regression import FeatureRegression
from specframe.components.rollouts.multi_step import MultiStep
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.kernel.errors import CompositionError, InputError, SpecframeError, WeightsError
from specframe.kernel.types import Student
from specframe.training import schedule, state, teaching, texts
from specframe.training.precision import check, chosen
from specframe.training.progress import Bar, Lines, Silent
from specframe.training.train import train
from specframe.training.validation import agreement, chains, measure
from specframe_falcon.glancing import Glancing

LOSSES = [(FeatureRegression(), 1.0, "regression"), (Distillation(), 0.1, "distillation")]


class Reached(Exception):
    """Stands for a kill."""


class Watch(Silent):
    """Calls `act` once a step is reported."""

    def __init__(self, at: int, act) -> None:
        self.at, self.act = at, act

    def report(self, step, figures) -> None:
        if step == self.at:
            self.act()


@pytest.fixture
def run(make_target, make_drafter, tokenizer):
    float32 = make_target(vocab=257)

    def start(settings, seed=0, dropout=0.2, target=float32, losses=LOSSES, **more):
        torch.manual_seed(seed)
        drafter = make_drafter(target, dropout=dropout)
        return drafter, lambda **again: train(
            target, drafter, losses, settings, tokenizer=tokenizer, **{**more, **again}
        )

    return start


def weights(drafter):
    return {k: v.clone() for k, v in drafter.module.state_dict().items()}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def test_training_reduces_the_loss_and_reports_what_it_did(run, settings):
    seen = []
    longer = replace(settings, steps=60, lr=1e-2, rollout=TeacherForced(), schedule="constant", validate_every=20)
    drafter, go = run(longer, dropout=0.0)
    before = weights(drafter)
    report = go(watcher=Watch(1, lambda: seen.append(1)))
    assert seen == [1] and report.steps == 60 and report.resumed == 0 and report.folder == settings.out
    record = json.loads((settings.out / "train.json").read_text())
    assert [entry["step"] for entry in record["losses"]] == list(range(1, 61))
    first, last = record["losses"][0], record["losses"][-1]
    assert set(first) == {"step", "loss", "regression", "distillation"}
    assert last["loss"] < 0.85 * first["loss"]
    assert first["loss"] == pytest.approx(first["regression"] + 0.1 * first["distillation"], rel=1e-5)
    assert len(record["validations"]) == 3
    assert record["validations"][-1]["loss"] < record["validations"][0]["loss"]
    assert record["best"] == max(v["tau"] for v in record["validations"]) == report.best
    assert record["versions"]["torch"] == torch.__version__
    assert record["settings"]["lr"] == 1e-2 and record["rollout"]["noise"] == 0.1
    assert not same(before, weights(drafter))
    assert same(load_file(settings.out / "last" / "model.safetensors"), weights(drafter))
    assert (settings.out / "model.safetensors").exists()
    assert all(p.grad is None for p in drafter.target.model.parameters()), "the target gets no gradients"


def test_losses_that_nothing_trained_has_a_part_in_are_refused(make_target, make_drafter, tokenizer, settings):
    class Forgetful(TeacherForced):
        """Shows the losses the drafter's outputs, without gradients."""

        def __call__(self, drafter, teacher, progress):
            student = super().__call__(drafter, teacher, progress)
            return replace(student, logits=student.logits.detach(), features=student.features.detach())

    target = make_target(vocab=257)
    with pytest.raises(CompositionError, match=r"part in the losses \(regression, distillation\)"):
        train(target, make_drafter(target), LOSSES, replace(settings, rollout=Forgetful()), tokenizer=tokenizer)


def test_a_killed_run_resumes_bit_for_bit(run, settings):
    def kill():
        raise Reached

    whole, go = run(settings)
    go()
    for at in (2, 6, 7, 11):  # before the first save, at a validation, between saves, near the end
        other = replace(settings, out=settings.out / f"killed at {at}")
        _, go = run(other)
        with pytest.raises(Reached):
            go(watcher=Watch(at, kill))
        resumed, go = run(other, seed=0 if at < 4 else 99)  # the state's weights, not the new ones
        report = go()
        assert report.resumed == at // 4 * 4
        assert same(weights(whole), weights(resumed))
        for name in ("model.safetensors", "last/model.safetensors"):
            assert (settings.out / name).read_bytes() == (other.out / name).read_bytes()
        one, two = (json.loads((out / "train.json").read_text()) for out in (settings.out, other.out))
        assert one["losses"] == two["losses"] and one["validations"] == two["validations"]
        assert one["tokens"] == two["tokens"] > 0


def test_the_record_counts_the_tokens_of_every_step(run, settings, tokenizer):
    read, _ = texts.load(settings, tokenizer, 257)
    order = schedule.Order(read.counts, settings.batch * settings.accumulate, settings.seed)
    _, go = run(settings)
    steps = go().steps
    record = json.loads((settings.out / "train.json").read_text())
    assert record["tokens"] == sum(int(read.counts[order.rows(step)].sum()) for step in range(steps))


def test_a_window_of_losses_survives_a_kill(run, settings):
    def reports(out):
        return json.loads((out / "train.json").read_text())["losses"]

    wide = replace(settings, log_every=6, save_every=1)
    _, go = run(wide)
    go()
    other = replace(wide, out=settings.out / "other")

    drafter, go = run(other)
    step, inner = [], drafter.predict

    def predict(*args):
        step.append(drafter.module.training)
        if sum(step) == 2 * 4 + 1:
            raise Reached
        return inner(*args)

    drafter.predict = predict
    with pytest.raises(Reached):
        go()
    _, go = run(other)
    assert go().resumed == 4
    assert reports(wide.out) == reports(other.out)


def test_what_killed_trainings_left_unfinished_goes_away(run, settings):
    left = [settings.out / ".state.safetensors.123.part", settings.out / "last" / ".model.safetensors.7.part"]
    others = [settings.out / ".film.mkv.part", settings.out / "deep" / ".state.safetensors.1.part"]
    for path in (*left, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    _, go = run(settings)
    go()
    assert not any(path.exists() for path in left) and all(path.exists() for path in others)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_the_step_and_keeps_the_state(run, settings, number):
    whole, go = run(replace(settings, out=settings.out / "whole"))
    go()
    handler = signal.getsignal(number)
    _, go = run(settings)
    with pytest.raises(KeyboardInterrupt, match=r"interrupted after step 7 of 12.*run the same command again"):
        go(watcher=Watch(7, lambda: os.kill(os.getpid(), number)))
    assert signal.getsignal(number) is handler
    assert not (settings.out / "train.json").exists()
    resumed, go = run(settings)
    assert go().resumed == 7
    assert same(weights(whole), weights(resumed))


def test_a_second_ctrl_c_does_not_wait(run, settings):
    _, go = run(settings)

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        go(watcher=Watch(2, twice))
    assert not (settings.out / "state.safetensors").exists()


def test_a_finished_run_is_not_run_again(run, settings):
    drafter, go = run(settings)
    go()
    done = weights(drafter)
    again, go = run(settings, seed=5)
    report = go()
    assert report.resumed == report.steps == 12
    assert same(done, weights(again))


def test_another_run_s_state_is_not_taken_over(run, settings):
    _, go = run(settings)
    go()
    _, go = run(replace(settings, lr=1e-3))
    with pytest.raises(WeightsError, match=r"another run's training state.*\n.*settings"):
        go()
    _, go = run(replace(settings, lr=1e-3, betas=(0.5, 0.6), rollout=MultiStep(steps=3)), losses=LOSSES[:1])
    with pytest.raises(WeightsError) as refusal:
        go()
    first, *differences = str(refusal.value).splitlines()
    assert first.endswith("What differs:") and len(differences) > 4
    assert max(map(len, differences)) <= 160, "a line for each value, however long that is"
    _, go = run(replace(settings, save_every=3, log_every=5))
    go()
    (settings.out / "state.safetensors").write_bytes(b"rubbish")
    with pytest.raises(WeightsError, match=r"cannot be read .*delete it"):
        go()


def test_a_full_disk_is_one_clear_error_and_the_last_state_stays(run, settings, monkeypatch):
    whole, go = run(replace(settings, out=settings.out / "whole"))
    go()
    calls, write = [], state.save_file

    def fills_up(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        write(*args, **kwargs)

    monkeypatch.setattr(state, "save_file", fills_up)
    _, go = run(settings)
    with pytest.raises(WeightsError, match="No space left on device; the state saved before is kept"):
        go()
    assert not [p for p in settings.out.iterdir() if p.name.endswith(".part")]
    resumed, go = run(settings)
    assert go().resumed == 4
    assert same(weights(whole), weights(resumed))


def test_the_global_generators_are_given_back(run, settings):
    _, go = run(replace(settings, steps=2))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    go()
    assert (random.random(), np.random.rand(), torch.rand(())) == expected


def test_accumulation_of_texts_of_one_length_is_a_larger_batch(run, settings, make_target, tmp_path):
    exact, even, draw = make_target(vocab=257, dtype=torch.float64), tmp_path / "even.jsonl", random.Random(0)
    even.write_text("\n".join(json.dumps({"text": "".join(draw.choices("abcdef ", k=25))}) for _ in range(24)))
    quiet = replace(settings, data=[str(even)], rollout=TeacherForced(noise=0.0), validation=0.0, steps=3, clip=0.0)
    drafters = []
    for name, batch, accumulate in (("one", 8, 1), ("two", 4, 2)):
        asked = replace(quiet, out=settings.out / name, batch=batch, accumulate=accumulate)
        drafter, go = run(asked, dropout=0.0, target=exact)
        drafter.block = 1  # no random crop
        go()
        drafters.append(weights(drafter))
    for name in drafters[0]:
        torch.testing.assert_close(drafters[0][name], drafters[1][name], rtol=0, atol=1e-6)


def test_a_teacher_cache_gives_the_same_training(run, settings, make_target, tokenizer, monkeypatch):
    online, go = run(settings)
    go()
    monkeypatch.setattr(teaching, "SHARD", 7)
    cached, go = run(replace(settings, out=settings.out / "c", cache=settings.out / "cache"))
    go()
    for a, b in zip(online.module.parameters(), cached.module.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)
    shards = sorted((settings.out / "cache").glob("*/*"))
    parts = texts.load(settings, tokenizer, 257)
    assert len(shards) == sum(math.ceil(len(part) / 7) for part in parts)
    again, go = run(replace(settings, out=settings.out / "d", cache=settings.out / "cache"))
    times = [p.stat().st_mtime_ns for p in shards]
    calls, teach = [], again.target.teach
    monkeypatch.setattr(again.target, "teach", lambda *args: calls.append(1) or teach(*args))
    go()
    assert [p.stat().st_mtime_ns for p in shards] == times
    assert len(calls) == 2, "one probe for each part, no forward over a text"
    assert same(weights(cached), weights(again))


def test_a_full_cache_disk(run, settings, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(teaching, "save_file", full)
    _, go = run(replace(settings, cache=settings.out / "cache"))
    with pytest.raises(WeightsError, match=r"teacher cache .* No space left"):
        go()


def test_bf16_trains_float32_weights_through_a_forward_without_gradients(run, settings):
    drafter, go = run(replace(settings, precision="bf16", rollout=Glancing(), validation=0.0))
    before = weights(drafter)
    go()
    after = weights(drafter)
    assert all(not torch.equal(before[k], after[k]) and after[k].dtype == torch.float32 for k in before)


@pytest.mark.parametrize(
    ("multiplies", "precision", "warned"), [(False, "bf16", 1), (True, "bf16", 0), (False, "float32", 0)]
)
def test_bf16_on_a_processor_without_it_is_warned_of(
    multiplies, precision, warned, settings, make_target, monkeypatch, caplog
):
    monkeypatch.setattr("specframe.training.precision.multiplies_bfloat16", lambda: multiplies)
    check(replace(settings, precision=precision), make_target())
    assert len(caplog.records) == warned and all("train.precision=float32" in text for text in caplog.messages)


@pytest.mark.parametrize(
    ("multiplies", "dtype", "precision"),
    [(False, torch.float32, "float32"), (True, torch.float32, "bf16"), (False, torch.bfloat16, "bf16")],
)
def test_auto_is_bf16_where_that_pays_or_the_target_is_in_half(
    multiplies, dtype, precision, settings, make_target, monkeypatch
):
    monkeypatch.setattr("specframe.training.precision.multiplies_bfloat16", lambda: multiplies)
    target = make_target()
    monkeypatch.setattr(type(target), "dtype", dtype)
    assert chosen(replace(settings, precision="auto"), target).precision == precision
    assert chosen(replace(settings, precision="tf32"), target).precision == "tf32"


def test_half_precision_weights_are_trained_in_float32_and_given_back(run, settings):
    drafter, go = run(replace(settings, validation=0.0, steps=2))
    drafter.net.bfloat16()
    go()
    assert {p.dtype for p in drafter.module.parameters()} == {torch.bfloat16}
    assert load_file(settings.out / "last" / "model.safetensors")["inner.weight"].dtype == torch.float32


def test_evaluate_s_tau_chooses_the_best(run, settings):
    taus = iter([3.0, 5.0, 4.0, 1.0])
    drafter, go = run(replace(settings, validate_every=3))
    kept = []

    def evaluate():
        assert not drafter.module.training and not torch.is_grad_enabled()
        kept.append(weights(drafter))
        return {"tau": next(taus)}

    assert go(evaluate=evaluate).best == 5.0
    assert same(load_file(settings.out / "model.safetensors"), kept[1])


def test_a_step_shows_in_every_weight_s_version(run, settings):
    """A quantized drafter is rounded anew, at a validation, where versions of its weights say that they changed."""
    drafter, go = run(replace(settings, validate_every=2))
    seen = []

    def evaluate():
        seen.append([p._version for p in drafter.module.parameters()])
        return {"tau": 1.0}

    go(evaluate=evaluate)
    assert len(seen) > 2
    assert all(one < two for before, after in pairwise(seen) for one, two in zip(before, after, strict=True))


def test_a_loss_that_is_not_finite_ends_the_run(run, settings):
    drafter, go = run(settings)
    with torch.no_grad():
        drafter.net.inner.weight.fill_(torch.nan)
    with pytest.raises(SpecframeError, match=r"no longer finite at step 1; lower train\.lr"):
        go()
    assert not (settings.out / "state.safetensors").exists()


def test_what_cannot_work_is_refused_at_once(run, settings, make_target, make_drafter, tokenizer, tmp_path):
    target = make_target(vocab=257)
    drafter = make_drafter(target)

    def refused(error, match, *, target=target, drafter=drafter, losses=LOSSES, settings=settings, tokenizer=tokenizer):
        with pytest.raises(error, match=match):
            train(target, drafter, losses, settings, tokenizer=tokenizer)

    refused(CompositionError, "cannot teach", target=object())
    refused(CompositionError, "nothing to train", drafter=object())
    refused(InputError, "no loss", losses=[])
    refused(InputError, "no tokenizer", tokenizer=None)
    refused(InputError, "exceeds the target's context of 128", settings=replace(settings, length=256))
    refused(InputError, "bf16", target=make_target(vocab=257, dtype=torch.bfloat16))
    (tmp_path / "file").write_text("")
    refused(InputError, "cannot be written", settings=replace(settings, out=tmp_path / "file" / "out"))
    drafter.net.requires_grad_(False)
    refused(CompositionError, "no trainable parameters")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("data", []),
        ("steps", 0),
        ("length", 4),
        ("lr", -1.0),
        ("validation", 1.0),
        ("betas", (0.9, 1.0)),
        ("batch", 0),
    ],
)
def test_settings_are_checked(settings, name, value):
    with pytest.raises(InputError, match=name):
        replace(settings, **{name: value})


def test_schedules(settings):
    def rates(**more):
        chosen = replace(settings, lr=1.0, **more)
        return [schedule.learning_rate(chosen, step, 10) for step in range(10)]

    assert rates(schedule="constant", warmup=0.0) == [1.0] * 10
    assert rates(schedule="linear", warmup=2) == pytest.approx([0.5, 1.0, *(1 - i / 8 for i in range(8))])
    assert rates(schedule="linear", warmup=0.2) == rates(schedule="linear", warmup=2)
    assert rates(schedule="cosine", warmup=0.0) == pytest.approx(
        [(1 + math.cos(math.pi * i / 10)) / 2 for i in range(10)]
    )


def test_order_shows_every_text_once_an_epoch_and_only_depends_on_the_step():
    order = schedule.Order(torch.ones(10), 4, seed=3)
    stream = torch.cat([order.rows(step) for step in range(5)])
    assert sorted(stream[:10].tolist()) == sorted(stream[10:].tolist()) == list(range(10))
    assert stream[:10].tolist() != stream[10:].tolist()
    assert torch.equal(schedule.Order(torch.ones(10), 4, seed=3).rows(3), order.rows(3))
    assert not torch.equal(schedule.Order(torch.ones(10), 4, seed=4).rows(3), order.rows(3))
    assert order.steps(1) == 3 and order.steps(2) == 5
    assert schedule.Order(torch.ones(3), 8, seed=0).rows(0).tolist().count(0) in (2, 3), "a step holds several epochs"


def test_progress_on_lines_and_on_a_terminal(run, settings, capsys):
    class Terminal:
        def __init__(self):
            self.text = ""

        def write(self, text):
            self.text += text

        def flush(self): ...

        def isatty(self):
            return True

    for watcher in (Lines, Bar):
        stream = Terminal()
        _, go = run(replace(settings, steps=2, validate_every=1, out=settings.out / watcher.__name__))
        go(watcher=watcher(stream))
        for word in ("parameters", "regression", "tau", "trained 2 steps"):
            assert word in stream.text


def test_unrolling_is_decoding_a_chain_literally(make_target, make_drafter):
    target = make_target(dtype=torch.float64)
    for block in (1, 2, 3):
        drafter = make_drafter(target, block=block)
        tokens = torch.randint(1, 40, (6, 30))
        teacher = target.teach(tokens, torch.rand(6, 30) < 0.9)
        counts = chains(drafter, teacher)
        depth = counts.shape[1]
        assert depth == 8 // block * block
        expected = torch.zeros(2, depth)
        for b in range(6):
            size = block
            while size < 30:
                if not teacher.mask[b, size]:
                    size += 1
                    continue
                known = [teacher.features["last"][b, i] for i in range(size)]
                accepted = 0
                while accepted < depth:
                    n = len(known)
                    if accepted % block == 0:
                        if n + block > 30:
                            break
                        out = drafter.predict(torch.stack(known)[None], tokens[b : b + 1, 1 : n + 1])[0]
                        block_ahead = [out[i] for i in range(n - block, n)]
                        known += block_ahead
                    at = size + accepted
                    if not teacher.mask[b, at]:
                        break
                    expected[1, accepted] += 1
                    if drafter.logits(known[at]).argmax() != teacher.logits[b, at].argmax():
                        break
                    expected[0, accepted] += 1
                    accepted += 1
                size += accepted + 1
        assert torch.equal(counts, expected)


def test_agreement_counts_by_level_and_measure_multiplies(make_target, make_drafter):
    target = make_target()
    teacher = target.teach(torch.randint(1, 40, (2, 12)), torch.ones(2, 12, dtype=torch.bool))
    logits = teacher.logits[:, [3, 4, 5, 6]].clone()
    logits[0, 1] = -logits[0, 1]  # one wrong prediction of level 2
    student = Student(
        logits,
        torch.tensor([[3, 4, 5, 6]] * 2),
        torch.tensor([[True] * 4, [True, True, True, False]]),
        torch.tensor([1, 2, 1, 2]),
    )
    # the second row's first cycle takes both levels, and so passes over the place where the other would start
    assert agreement(student, teacher).tolist() == [[3, 2], [3, 3]]

    class Blind:
        module = torch.nn.Linear(1, 1)

        def save(self, folder): ...

    figures = measure(Blind(), [teacher], [(Distillation(), 2.0, "d")], lambda *_: student)
    assert figures["accuracy.1"] == 1.0 and figures["accuracy.2"] == pytest.approx(2 / 3)
    assert figures["tau"] == pytest.approx(1 + 1 + 2 / 3)
    assert figures["loss"] == pytest.approx(2 * figures["d"])
