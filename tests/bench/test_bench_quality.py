"""Quality of answers: its intervals, and a bench with a check."""

import json

import numpy as np
import pytest

from specframe import load
from specframe.bench.contest.datasets import read_questions
from specframe.cli.main import main
from specframe_report.quality import mean_interval, paired_interval

from .conftest import write_recipe

QUICK = ["--repeats", "2", "--max-new-tokens", "6", "--json"]


def test_intervals_cover_the_truth_and_never_shrink_to_a_point():
    random, inside, paired = np.random.default_rng(0), 0, 0
    for _ in range(400):
        ours, theirs = random.random((2, 60)) < [[0.9], [0.93]]
        found, change = mean_interval(ours.astype(float)), paired_interval(ours.astype(float) - theirs)
        inside += found.low <= 0.9 <= found.high
        paired += change.low <= -0.03 <= change.high
    assert inside > 370 and paired > 370
    same = paired_interval(np.zeros(50))
    assert same.value == 0 and -0.08 < same.low < -0.02 and same.low == pytest.approx(-same.high)
    assert mean_interval(np.array([np.nan, 1.0])).low is None and mean_interval(np.array([np.nan])) is None


@pytest.fixture
def known(here, model_folder, monkeypatch):
    """A set whose references are what plain decoding answers, but for the last one."""
    monkeypatch.setattr("specframe_report.page._draw", lambda summary, folder: [])
    prompts = [f"hello {name}" for name in "abcdefghijkl"]
    write_recipe(here / "lossy.yaml", model_folder, "drafter: {use: lookup}", "lenient, lenience: 0.5")
    answers = (
        load("lookup.yaml", overrides=["sampling.max_new_tokens=6", "run.chat=true"]).plain().generate(prompts).texts
    )
    answers[-1] += " and more"
    lines = [json.dumps({"prompt": text, "answer": answer}) for text, answer in zip(prompts, answers, strict=True)]
    (here / "known.jsonl").write_text("\n".join(lines) + "\n")
    return here


def test_a_bench_shows_quality_and_its_change(known, capsys):
    assert main(["bench", "lookup.yaml", "plain", "--data", "known.jsonl", "--check", "exact", *QUICK]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    ours, plain = (entry["overall"] for entry in summary["contestants"])
    assert ours["quality"] == plain["quality"] and ours["quality"]["value"] == pytest.approx(11 / 12)
    assert ours["quality_change"]["value"] == 0 and ours["quality_change"]["low"] < 0
    assert "91.7% (0.0 [" in (known / "runs" / "bench" / "lookup" / "table.md").read_text()
    results = json.loads((known / "runs" / "bench" / "lookup" / "results.json").read_text())
    assert [prompt["check"] for prompt in results["prompts"]] == ["exact"] * 12


def test_nine_prompts_have_no_quality(known, capsys):
    assert (
        main(["bench", "lookup.yaml", "plain", "--data", "known.jsonl", "--check", "exact", "--limit", "9", *QUICK])
        == 0
    )
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [entry["overall"]["quality"] for entry in summary["contestants"]] == [None, None]


def test_a_lossy_contestant_without_a_check_is_not_measured(known, capsys):
    assert main(["bench", "lossy.yaml", "plain", "--data", "known.jsonl", *QUICK[:-1]]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "not measured" in out and "Its quality is not measured" in out


def test_checks_that_cannot_be_made_are_refused_in_a_line(known, capsys):
    (known / "bare.jsonl").write_text('{"prompt": "hello"}\n')
    for given, words in (
        (["--data", "known.jsonl", "--check", "tests"], "--run-code"),
        (["--data", "bare.jsonl", "--check", "number"], "bare/0 has no answer to check"),
        (["--data", "known.jsonl", "--check", "nonsense"], "no check named 'nonsense'"),
    ):
        assert main(["bench", "lookup.yaml", "plain", *given, *QUICK]) == 2
        err = capsys.readouterr().err
        assert words in err and len(err.splitlines()) == 1


def test_published_sets_have_checks_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECFRAME_DATA", str(tmp_path))
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").write_text('{"question": "2 + 2?", "answer": "#### 4"}\n{"question": "3?"}\n')
    assert [(question.check, question.reference) for question in read_questions(["gsm8k"])] == [
        ("number", "#### 4"),
        (None, ""),
    ]
