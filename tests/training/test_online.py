"""A drafter that learns while it drafts: what it learns from, when, and what is left when something goes wrong."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

import specframe
import specframe.plugin
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.model import ModelDrafter
from specframe.components.losses.divergences import ReverseKL
from specframe.components.rollouts.text import OnPolicy
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.fixed import Chain, Fixed
from specframe.kernel.errors import CompositionError, InputError, WeightsError
from specframe.training import online_learner as learning
from specframe.training import state
from specframe.training.online import Online
from specframe.training.transcripts import Transcript

VOCAB = 11
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [2, 2], [10, 1, 4], [3], [9, 9, 1], [5, 6, 7, 8, 9]]


def drafter(seed: int = 4) -> ModelDrafter:
    return ModelDrafter.from_model(random_model(vocab=VOCAB, layers=1, seed=seed))


def pipeline(online, tree=None, batch=1, temperature=0.0, verifier="match") -> specframe.Pipeline:
    return specframe.compose(
        target=HFTarget.from_model(random_model(vocab=VOCAB, layers=2, seed=3)),
        drafter=online,
        tree=tree or Chain(depth=3),
        verifier=verifier,
        sampling={"temperature": temperature, "max_new_tokens": 12},
        run={"batch": batch},
    )


def weights(online: Online) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in online.drafter.module.state_dict().items()}


def same(one, other) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("batch", "temperature"), [(1, 0.0), (3, 1.0)])
def test_what_is_learnt_is_what_the_target_would_teach(batch, temperature, monkeypatch) -> None:
    """Each text's distributions and features are those of one more forward pass of the target, which is not taken."""
    seen: list[tuple[bool, specframe.plugin.Teacher]] = []
    made = Transcript.teacher
    monkeypatch.setattr(
        Transcript, "teacher", lambda self, length: seen.append((self.held_back, made(self, length))) or seen[-1][1]
    )

    class Reading(ModelDrafter):
        taps = frozenset({"last"})

        def bind(self, target):
            super().bind(target)
            target.request(self.taps)

    inner = Reading.from_model(random_model(vocab=VOCAB, layers=1, seed=4))
    composed = pipeline(Online(drafter=inner, every=2, held=3), Fixed(widths=[2, 1, 1]), batch, temperature)
    found = composed.generate(PROMPTS)
    texts = {tuple(prompt + tokens) for prompt, tokens in zip(PROMPTS, found.tokens, strict=True)}
    assert {held for held, _ in seen} == {True, False}
    for held, teacher in seen:
        again = composed.parts.target.teach(teacher.tokens, teacher.mask)
        assert any(teacher.tokens[0].tolist() == list(text[: teacher.tokens.shape[1]]) for text in texts)
        torch.testing.assert_close(teacher.logits[teacher.mask], again.logits[teacher.mask], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(teacher.features["last"], again.features["last"], rtol=1e-3, atol=1e-4)
        if held and batch == 1:
            text = tuple(teacher.tokens[0].tolist())
            (prompt,) = {len(prompt) for prompt in PROMPTS if text[: len(prompt)] == tuple(prompt)} & {
                int(teacher.mask[0].long().argmax())
            }
            assert teacher.mask[0, prompt:].all() and not teacher.mask[0, :prompt].any()
    assert sum(int(teacher.mask.sum()) for held, teacher in seen if not held) > 10


def test_it_learns_from_rejections_alone(monkeypatch) -> None:
    """A position counts when tokens were drafted after it and none of them was accepted."""
    seen: list[specframe.plugin.Teacher] = []
    made = Transcript.teacher
    monkeypatch.setattr(Transcript, "teacher", lambda self, length: seen.append(made(self, length)) or seen[-1])
    composed = pipeline(Online(drafter=drafter(), every=1, held=0), Chain(depth=3))
    wanted: list[list[int]] = []
    with composed.open_endless(1) as session:
        for request in composed.requests(PROMPTS):
            session.admit([request])
            length, rejected = len(request.tokens), list[int]()
            while session.live:
                cycle = session.step()
                length += int(cycle.verdict.count)
                if int(cycle.verdict.length) < 3:
                    rejected.append(length - 1)
            wanted.append(rejected)
    assert [teacher.mask[0].nonzero()[:, 0].tolist() for teacher in seen] == wanted
    assert len(seen) == len(PROMPTS) and sum(map(len, wanted)) > 10


@pytest.mark.parametrize("batch", [1, 3])
def test_more_is_accepted_and_the_text_stays(batch) -> None:
    online = Online(drafter=drafter(), every=1, steps=8, lr=2e-2, held=2)
    composed = pipeline(online, batch=batch)
    plain = composed.plain().generate(PROMPTS)
    before = composed.generate(PROMPTS)
    after = composed.generate(PROMPTS)
    assert before.tokens == after.tokens == plain.tokens
    assert after.acceptance.tau > before.acceptance.tau + 0.1
    assert online.learner is not None and {entry["kept"] for entry in online.learner.run_state.history} >= {1.0}


def test_the_sampled_text_stays_under_match() -> None:
    online = Online(drafter=drafter(), every=1, steps=5, lr=3e-2, held=0)
    composed = pipeline(online, temperature=1.0)
    first = weights(pipeline(Online(drafter=drafter())).parts.drafter)
    assert composed.generate(PROMPTS).tokens == composed.plain().generate(PROMPTS).tokens
    assert not same(first, weights(online))


def test_weights_change_between_cycles_only() -> None:
    online = Online(drafter=drafter(), every=1, held=0, lr=1e-2)
    composed = pipeline(online)
    propose, changed = online.drafter.propose, 0

    def watched(*given):
        before = weights(online)
        draft = propose(*given)
        assert same(before, weights(online))
        return draft

    online.drafter.propose = watched
    with composed.open_endless(2) as session:
        for request in composed.requests(PROMPTS):
            session.admit([request])
            while session.live:
                before = weights(online)
                session.step()
                ended = not session.live
                assert same(before, weights(online)) or ended
                changed += ended and not same(before, weights(online))
    assert changed > len(PROMPTS) / 2


def test_an_update_that_hurts_is_undone() -> None:
    online = Online(drafter=drafter(), every=1, held=4, lr=30.0)
    composed = pipeline(online)
    before = weights(online)
    composed.generate(PROMPTS)
    assert online.learner is not None
    history = online.learner.run_state.history
    assert len(history) >= 4 and {entry["kept"] for entry in history} == {0.0}
    assert all(entry["held_after"] < entry["held_before"] for entry in history)
    assert same(before, weights(online))


def test_without_a_guard_it_is_kept_unless_it_is_not_finite() -> None:
    online = Online(drafter=drafter(), every=1, held=0, lr=30.0)
    pipeline(online).generate(PROMPTS[:2])
    assert online.learner is not None and online.learner.run_state.history[0]["kept"]

    class Infinite(ReverseKL):
        def __call__(self, student, teacher):
            return super().__call__(student, teacher) * torch.inf

    online = Online(drafter=drafter(), every=1, held=0, loss=Infinite())
    composed = pipeline(online)
    before = weights(online)
    composed.generate(PROMPTS[:2])
    assert (
        online.learner is not None and not online.learner.run_state.history[0]["kept"] and same(before, weights(online))
    )


def learning_one(out: Path | None, **options) -> Online:
    return Online(drafter=drafter(), every=2, held=0, lr=1e-2, out=out, **options)


def test_it_goes_on_from_its_folder_as_if_it_had_never_ended(tmp_path) -> None:
    whole = learning_one(None)
    pipeline(whole).generate(PROMPTS)
    for half in (PROMPTS[:4], PROMPTS[4:]):
        online = learning_one(tmp_path)
        composed = pipeline(online)
        composed.generate(half)
        del composed
        parted, online.learner = weights(online), None
    assert same(weights(whole), parted)
    assert json.loads((tmp_path / "online.json").read_text())["updates"] == 4
    saved = ModelDrafter(weights=str(tmp_path), dtype="float64")
    pipeline(saved)
    assert same(saved.module.state_dict(), parted)


def test_what_killed_processes_left_unfinished_goes_away(tmp_path) -> None:
    left = tmp_path / ".model-abc.part"
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"half of it")
    (tmp_path / ".state.safetensors.12.part").write_bytes(b"half of it")
    (tmp_path / ".model-notes").mkdir()
    pipeline(learning_one(tmp_path)).generate(PROMPTS)
    assert {path.name for path in tmp_path.glob(".*")} <= {".model-notes", ".lock", ".specframe.lock"}
    assert (tmp_path / "model.safetensors").exists()


def test_a_drafter_in_half_precision_learns_in_float32(tmp_path) -> None:
    def half() -> Online:
        inner = ModelDrafter.from_model(random_model(vocab=VOCAB, layers=1, seed=4).bfloat16())
        return Online(drafter=inner, every=2, held=0, lr=1e-5, out=tmp_path)  # too small a step to be seen in bfloat16

    first = half()
    composed = pipeline(first)
    before = weights(first)
    composed.generate(PROMPTS[:4])
    assert first.learner is not None and first.learner.run_state.step == 2
    masters = {name: value.clone() for name, value in first.learner.master.state_dict().items()}
    moved = [not torch.equal(masters[name], before[name].float()) for name in masters]
    assert any(moved) and all(value.dtype == torch.float32 for value in masters.values())
    assert all(torch.equal(masters[name].bfloat16(), value) for name, value in weights(first).items())
    del composed
    first.learner = None
    second = half()
    pipeline(second)
    assert second.learner is not None and same(masters, second.learner.master.state_dict())


def test_another_drafter_or_a_second_one_is_refused(tmp_path) -> None:
    online = learning_one(tmp_path)
    composed = pipeline(online)
    composed.generate(PROMPTS)
    with pytest.raises(InputError, match=r"another process is writing to .*; wait for it to end, or give another d"):
        pipeline(learning_one(tmp_path))
    online.learner = None
    with pytest.raises(WeightsError, match=r"choose another drafter.out") as refused:
        pipeline(Online(drafter=drafter(seed=5), out=tmp_path))
    assert "drafter that learning began with" in str(refused.value)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"is not a folder; give another drafter.out"):
        pipeline(learning_one(tmp_path / "file"))
    (tmp_path / state.FILE).write_bytes(b"torn")
    with pytest.raises(WeightsError, match="cannot be read"):
        pipeline(learning_one(tmp_path))


@pytest.mark.parametrize("full", ["state", "drafter", "record"])
def test_a_full_disk_stops_learning_not_decoding(full, tmp_path, monkeypatch, caplog) -> None:
    online = learning_one(tmp_path)
    composed = pipeline(online, batch=2)

    def refuse(*given, **options):
        raise OSError(28, "No space left on device")

    if full == "state":
        monkeypatch.setattr(state, "save_file", refuse)
    elif full == "drafter":
        monkeypatch.setattr(online.drafter.module, "save_pretrained", refuse)
    else:
        monkeypatch.setattr(learning, "write_json", refuse)
    with caplog.at_level(logging.WARNING):
        found = composed.generate(PROMPTS)
    assert found.tokens == composed.plain().generate(PROMPTS).tokens
    (warning,) = caplog.records
    assert "the drafter learns no more" in warning.message and "No space left" in warning.message
    assert online.learner is None and composed.generate(PROMPTS).tokens == found.tokens


def test_an_interrupt_within_an_update_leaves_the_weights_before_it(monkeypatch) -> None:
    online = learning_one(None, steps=3)
    composed = pipeline(online)
    before, step, steps = weights(online), learning.Learner._step, []

    def interrupted(self, *given):
        steps.append(step(self, *given))
        if len(steps) == 2:
            assert not same(before, weights(online))
            raise KeyboardInterrupt
        return steps[-1]

    monkeypatch.setattr(learning.Learner, "_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        composed.generate(PROMPTS)
    assert len(steps) == 2 and same(before, weights(online))


def test_long_texts_are_cut_to_their_ends(monkeypatch) -> None:
    seen: list[int] = []
    made = Transcript.teacher
    monkeypatch.setattr(
        Transcript, "teacher", lambda self, length: (t := made(self, length), seen.append(t.tokens.shape[1]))[0]
    )
    pipeline(Online(drafter=drafter(), every=2, length=8)).generate(PROMPTS)
    assert set(seen) == {8}


def test_refusals() -> None:
    with pytest.raises(CompositionError, match="trains a drafter with weights, such as `model` or `eagle`; Lookup has"):
        Online(drafter=Lookup())
    with pytest.raises(CompositionError, match="needs texts that the target has not read"):
        Online(drafter=drafter(), rollout=OnPolicy())
    for options in ({"every": 0}, {"steps": 0}, {"held": -1}, {"length": 7}, {"lr": 0.0}, {"lr": float("nan")}):
        with pytest.raises(InputError, match=f"online: {next(iter(options))} must be"):
            Online(drafter=drafter(), **options)
