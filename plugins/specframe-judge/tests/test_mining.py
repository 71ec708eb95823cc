"""Labels are what the check makes of texts with refused tokens in them; mining repeats itself, and goes on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from judge_fakes import NAME, VOCAB, PlantedTarget

import specframe
from specframe import InputError, WeightsError
from specframe.cli.main import main
from specframe.testing import GivenDrafter
from specframe_judge.fitting import area, fit, operating
from specframe_judge.head import read
from specframe_judge.labels import LabelFile
from specframe_judge.mining import Label, Problem, Refused, mine

LENGTH = 10


def pipeline(batch=3):
    law = torch.rand(VOCAB, VOCAB, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return specframe.compose(
        target=PlantedTarget(),
        drafter=GivenDrafter(law / law.sum(-1, keepdim=True)),
        tree={"use": "chain", "depth": 3},
        sampling={"max_new_tokens": LENGTH},
        run={"batch": batch},
    )


def problems(count=6):
    """Prompts of token ids; an answer is right unless 3 divides the sum of its tokens."""
    return [Problem(number, prompt(number), lambda text: is_right(map(int, text.split()))) for number in range(count)]


def prompt(number):
    return [number % VOCAB, 2 + number // VOCAB]


def is_right(tokens):
    return sum(tokens) % 3 != 0


def mined(most=20, batch=3, seed=0, given=None):
    found = mine(pipeline(batch), "last", given or problems(), most=most, seed=seed)
    return {problem.number: labels for problem, labels in found}


def test_a_label_is_the_check_of_the_finished_text():
    """Every label is found again by plain decoding after its token."""
    plain, count = pipeline(1).plain(), {True: 0, False: 0}
    for number, labels in mined(given=problems(16)).items():
        text = plain.generate([prompt(number)]).tokens[0]
        assert (labels is None) != is_right(text)
        for label in labels or ():
            it = label.refusal
            assert text[it.place] == it.wanted != it.token
            assert it.feature[0] == 1 - 2 * (it.token % 2) and it.surprise > 0
            start = [*text[: it.place], it.token]
            left = LENGTH - len(start)
            whole = start + (plain.generate([[*prompt(number), *start]], max_new_tokens=left).tokens[0] if left else [])
            assert label.harmless == is_right(whole)
            text = whole if label.harmless else text
            count[label.harmless] += 1
    assert min(count.values()) > 2, count


def test_mining_repeats_itself_whatever_the_batch_and_takes_as_many_labels_as_asked():
    def plain(found):
        return {
            n: labels and [(x.refusal.place, x.refusal.token, x.harmless) for x in labels]
            for n, labels in found.items()
        }

    whole = plain(mined())
    assert plain(mined(batch=1)) == plain(mined(batch=6)) == whole
    few = plain(mined(most=2))
    assert max(len(labels) for labels in few.values() if labels) == 2
    assert plain(mined(most=2, seed=5)) != few == plain(mined(most=2))


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_texts_that_end_with_their_first_token_leave_a_slot_to_their_own_problem(batch):
    """A row that ends in its admission is free at once; a waiting problem does not take its place."""
    ending = replace(pipeline(batch), ends=frozenset({2}))
    found = {problem.number: labels for problem, labels in mine(ending, "last", problems(32), most=20)}
    plain, short = replace(ending.plain(), ends=ending.ends), 0
    assert found.keys() == set(range(32))
    for number, labels in found.items():
        text = plain.generate([prompt(number)]).tokens[0]
        assert (labels is None) != is_right(text)
        for label in labels or ():
            start = [*text[: label.refusal.place], label.refusal.token]
            ended = label.refusal.token in ending.ends
            rest = LENGTH - len(start)
            given = [] if ended or not rest else [[*prompt(number), *start]]
            whole = start + [token for each in given for token in plain.generate([each], max_new_tokens=rest).tokens[0]]
            short += bool(given) and len(whole) == len(start) + 1 and len(whole) < LENGTH
            assert label.harmless == is_right(whole)
            text = whole if label.harmless else text
    assert short > 2, short


def test_labels_are_kept_and_those_of_another_mining_refused(tmp_path):
    terms, keys = {"seed": 0, "labels": 20}, ["a", "b", "c"]
    first = LabelFile(tmp_path, terms, keys)
    for number, labels in mined(given=problems(3)).items():
        first.add(number, labels)
    again = LabelFile(tmp_path, terms, keys)
    assert again.mined.keys() == {0, 1, 2}
    known = [label for labels in again.mined.values() for label in labels or ()]
    meant = [label for labels in first.mined.values() for label in labels or ()]
    assert [(label.harmless, label.refusal.place) for label in known] == [(x.harmless, x.refusal.place) for x in meant]
    assert all(torch.equal(a.refusal.feature, b.refusal.feature) for a, b in zip(known, meant, strict=True))
    other = LabelFile(tmp_path, terms, ["c", "new", "a"])  # the same problems in another order, and one more
    assert other.mined.keys() == {0, 2} and len(other.mined[0] or ()) == len(first.mined[2] or ())
    with pytest.raises(InputError, match="another mining \\(other: seed\\)"):
        LabelFile(tmp_path, terms | {"seed": 1}, keys)
    whole = (tmp_path / "labels.jsonl").read_text()
    (tmp_path / "labels.jsonl").write_text(whole + whole.splitlines()[1][:30])  # stopped while it wrote
    assert (
        LabelFile(tmp_path, terms, keys).mined.keys() == {0, 1, 2} and (tmp_path / "labels.jsonl").read_text() == whole
    )
    (tmp_path / "labels.jsonl").write_text('{"seed": 0}\nnonsense\n')
    with pytest.raises(InputError, match="no file of labels"):
        LabelFile(tmp_path, terms, keys)
    (tmp_path / "labels.jsonl").write_text('{"seed": 1}\n')  # stopped before its first problem
    assert not LabelFile(tmp_path, terms, keys).mined
    assert json.loads((tmp_path / "labels.jsonl").read_text()) == terms
    (tmp_path / "labels.jsonl").write_text("nonsense\n")
    with pytest.raises(InputError, match="no file of labels"):
        LabelFile(tmp_path, terms, keys)


def planted(count=40, width=6):
    """Labels whose kind follows from the first feature, most of the time."""
    random = torch.Generator().manual_seed(0)

    def label():
        feature = torch.randn(width, generator=random)
        harmless = bool(torch.rand((), generator=random) < torch.sigmoid(3 * feature[0]))
        return Label(Refused(1, 2, 3, float(torch.rand((), generator=random)), feature), harmless)

    return [(number, [label() for _ in range(6)]) for number in range(count)]


def test_a_fitted_head_finds_what_is_planted_on_problems_it_has_not_seen():
    fitted = fit(planted())
    assert fitted.area > 0.8 and abs(fitted.surprise_area - 0.5) < 0.12
    weight = fitted.head.weight.abs()
    assert int(weight.argmax()) == 0 and weight[0] > 3 * weight[1:].max()
    assert [point.harmful for point in fitted.points] == sorted(point.harmful for point in fitted.points)
    assert fitted.points[2].harmful <= 0.1 < 0.4 < fitted.points[2].harmless
    with pytest.raises(WeightsError, match="labels of both kinds"):
        fit([(0, [Label(Refused(0, 1, 2, 0.5, torch.zeros(3)), True)])])


def test_thresholds_let_through_no_more_than_their_share():
    scores, right = torch.tensor([0.1, 0.2, 0.3, 0.9, 0.5]), torch.tensor([False, False, False, True, True])
    numbers = [0, 1, 1, 2, 2]
    none, one = (operating(scores, right, share, numbers) for share in (0.0, 0.4))
    assert none.harmful == none.answers == 0 and none.harmless == 1
    assert one.harmful == one.answers == pytest.approx(1 / 3)
    assert operating(scores, right, 0.9, numbers).answers == pytest.approx(1 / 3)  # two tokens of one problem
    assert area(scores, right) == 1 and area(-scores, right) == 0


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge.yaml").write_text(
        "target: {use: table, vocab: 8}\ndrafter: {use: lookup}\n"
        "verifier: {use: judge}\nsampling: {max_new_tokens: 12}\nrun: {batch: 3}\n"
    )
    return tmp_path


def test_bad_input_is_one_line(recipe, capsys):
    (recipe / "bare.jsonl").write_text('{"prompt": "1 + 1?"}\n')
    (recipe / "sums.jsonl").write_text('{"prompt": "1 + 1?", "answer": 2}\n')
    for given, words in (
        (["--prompts", "bare.jsonl"], "prompt 1 has no answer"),
        (["--prompts", "sums.jsonl", "--check", "tests"], "--run-code"),
        (["--prompts", "sums.jsonl", "--check", "odd"], "no check named 'odd'"),
        (["--prompts", "missing.jsonl"], "missing.jsonl"),
    ):
        assert main(["judge", "judge.yaml", *given, "--out", "head"]) == 2
        err = capsys.readouterr().err
        assert words in err and len(err.splitlines()) == 1, err
    assert not (recipe / "head").exists()


@pytest.mark.parametrize(("right", "counted"), [(True, "harmless and 0 harmful"), (False, "0 harmless and 0 harmful")])
def test_labels_of_one_kind_end_in_one_line_after_the_mining(right, counted, recipe, capsys, monkeypatch):
    monkeypatch.setattr("specframe_judge.command._pipeline", lambda plan: pipeline())
    alike = [replace(problem, right=lambda text: right) for problem in problems(3)]
    monkeypatch.setattr("specframe_judge.command.problems_of", lambda records, test, file: alike)
    (recipe / "sums.jsonl").write_text("".join(json.dumps({"prompt": f"{n}?", "answer": n}) + "\n" for n in range(3)))
    assert main(["judge", "judge.yaml", "--prompts", "sums.jsonl", "--out", "head"]) == 2
    *progress, last = capsys.readouterr().err.splitlines()
    assert len(progress) == 3 and "labels of both kinds" in last and counted in last, last
    assert not (recipe / "head" / "model.safetensors").exists()


def test_the_command_mines_fits_stores_and_goes_on(recipe, capsys, monkeypatch):
    """The command over a planted target in the place of the recipe's."""
    monkeypatch.setattr("specframe_judge.command._pipeline", lambda plan: pipeline())
    monkeypatch.setattr(
        "specframe_judge.command.problems_of",
        lambda records, test, file: [*problems(len(records))],
    )
    (recipe / "sums.jsonl").write_text("".join(json.dumps({"prompt": f"{n}?", "answer": n}) + "\n" for n in range(8)))
    command = ["judge", "judge.yaml", "--prompts", "sums.jsonl", "--out", "head"]
    assert main([*command, "--labels", "20"]) == 0
    out, err = capsys.readouterr()
    assert "verifier: {use: judge, weights: head" in out and "by -log p alone" in out and "8 of 8 problems" in err
    head = read("head", PlantedTarget(), "last")
    assert head.weight.abs().sum() > 0
    assert json.loads((recipe / "head" / "config.json").read_text())["check"] == "number"
    assert main([*command, "--labels", "20"]) == 0
    assert capsys.readouterr().err == ""  # nothing is left to mine
    assert main([*command, "--labels", "20", "--limit", "5"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("5 of 5 problems") and err == ""  # fewer problems, all known
    with (recipe / "sums.jsonl").open("a") as file:
        file.write('{"prompt": "8?", "answer": 8}\n')
    assert main([*command, "--labels", "20"]) == 0
    assert len(capsys.readouterr().err.splitlines()) == 1  # one problem more is mined alone
    assert main([*command, "--labels", "3"]) == 2
    assert "another mining (other: labels)" in capsys.readouterr().err
    assert NAME.name in (recipe / "head" / "config.json").read_text()
