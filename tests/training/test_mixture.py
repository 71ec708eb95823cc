"""`train.mixture`: further texts whose share of a step's texts changes from the first step to the last."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from specframe.components.losses.feature_regression import FeatureRegression
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.kernel.errors import InputError
from specframe.training import texts
from specframe.training.schedule import MixedOrder
from specframe.training.settings import Mixture, TrainSettings
from specframe.training.train import train

OWN, MIXED, SIZE, STEPS = 30, 12, 8, 41


def counts(begin, end, steps=STEPS):
    order = MixedOrder(torch.ones(OWN + MIXED), MIXED, SIZE, 3, Mixture([], begin, end), steps)
    taken = [order.rows(step) for step in range(steps)]
    assert all(len(each) == SIZE for each in taken)
    return taken, [int((each >= OWN).sum()) for each in taken]


def test_the_share_grows_evenly():
    taken, mixed = counts(0.0, 1.0)
    assert all(abs(count - SIZE * step / (STEPS - 1)) <= 1 for step, count in enumerate(mixed))
    assert mixed[0] == 0 and mixed[-1] == SIZE
    assert sum(mixed) == SIZE * STEPS // 2
    stream = torch.cat([each[each >= OWN] for each in taken])
    assert sorted(stream[:MIXED].tolist()) == list(range(OWN, OWN + MIXED)), "each once before any comes again"
    own = torch.cat([each[each < OWN] for each in taken])
    assert sorted(own[:OWN].tolist()) == list(range(OWN))


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_may_stay(share):
    _, mixed = counts(share, share)
    assert set(mixed) == {round(SIZE * share)}


def test_a_share_may_fall():
    _, mixed = counts(1.0, 0.5)
    assert mixed[0] == SIZE and mixed[-1] == SIZE // 2


def test_a_step_depends_on_its_number_alone():
    one, two = (MixedOrder(torch.ones(42), MIXED, SIZE, 3, Mixture([]), STEPS) for _ in range(2))
    wanted = [one.rows(step) for step in range(STEPS)]
    assert torch.equal(two.rows(25), wanted[25])
    other = MixedOrder(torch.ones(42), MIXED, SIZE, 4, Mixture([]), STEPS)
    assert not torch.equal(other.rows(25), wanted[25])


def write(path, words, number):
    path.write_text("".join(json.dumps({"text": f"{words} {i}"}) + "\n" for i in range(number)), encoding="utf-8")
    return str(path)


@pytest.fixture
def mixed(settings, tmp_path) -> TrainSettings:
    """Settings with eight of one kind of text and six of another."""
    own, more = write(tmp_path / "own.jsonl", "own text", 8), write(tmp_path / "more.jsonl", "another one", 6)
    return replace(settings, data=[own], mixture={"data": [more]}, length=64, validation=0.25, pack=False)


def test_both_are_read_and_both_are_held_back(mixed, tokenizer):
    train, held = texts.load(mixed, tokenizer, 257)
    assert (len(train), train.mixed, len(held)) == (6 + 4, 4, 2 + 2)
    read = [tokenizer.decode(train.batch(torch.tensor([row]))[0][0].tolist()) for row in range(len(train))]
    assert ["own" in text for text in read] == [True] * 6 + [False] * 4
    kept = [tokenizer.decode(held.batch(torch.tensor([row]))[0][0].tolist()) for row in range(len(held))]
    assert ["own" in text for text in kept] == [True, False, True, False], "a validation unrolls only some"


class Watched(TeacherForced):
    """Teacher forcing that keeps the texts it is given to learn from."""

    def __init__(self):
        super().__init__(noise=0.0)
        self.seen = []

    def __call__(self, drafter, teacher, progress):
        if torch.is_grad_enabled():
            self.seen += tokens_of(teacher)
        return super().__call__(drafter, teacher, progress)


def tokens_of(teacher):
    return [tuple(row[row > 0].tolist()) for row in teacher.tokens]


def test_a_drafter_learns_from_both_and_ends_with_the_mixed(mixed, make_target, make_drafter, tokenizer):
    rollout, target = Watched(), make_target(vocab=257)
    asked = replace(mixed, rollout=rollout, steps=9, batch=4, accumulate=1)
    report = train(target, make_drafter(target), [(FeatureRegression(), 1.0, "features")], asked, tokenizer=tokenizer)
    kinds = ["own" in tokenizer.decode(tokens) for tokens in rollout.seen]
    assert len(kinds) == 9 * 4
    assert all(kinds[:4]) and not any(kinds[-4:]) and kinds[12:24].count(True) == 6
    assert json.loads((report.folder / "train.json").read_text())["settings"]["mixture"] == mixed.mixture


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "train.mixture.data must be a list"),
        ({"data": "texts.jsonl"}, "train.mixture.data must be a list"),
        ({"data": ["a"], "to": 2}, "from and to are shares, from 0 to 1, not 0.0 and 2"),
        ({"data": ["a"], "from": "none"}, "from and to are shares"),
        ({"data": ["a"], "share": 1}, "train.mixture has no option share; it has data, from, to"),
    ],
)
def test_what_cannot_be_used_is_refused(settings, given, complaint):
    with pytest.raises(InputError, match=complaint):
        replace(settings, mixture=given)


def test_packing_is_refused(settings):
    with pytest.raises(InputError, match="texts of a mixture are not packed"):
        replace(settings, mixture={"data": ["a"]}, pack=True)


def test_a_cooldown_is_refused(settings):
    with pytest.raises(InputError, match="its shares depend on the last step"):
        replace(settings, schedule="constant", cooldown={"share": 0.2}, mixture={"data": ["a"]})


def test_an_empty_file_is_named(mixed, tokenizer, tmp_path):
    (tmp_path / "more.jsonl").write_text("")
    with pytest.raises(InputError, match=r"train\.mixture: no text in .*more\.jsonl"):
        texts.load(mixed, tokenizer, 257)
