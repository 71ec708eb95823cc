"""Questions are chosen by their sources."""

import importlib
import json
import sys
from pathlib import Path

TRAINING = Path(__file__).parents[1] / "training"


def line(source, text):
    return json.dumps({"messages": [{"role": "user", "content": text}], "source": source}) + "\n"


def test_the_first_ones_of_each_source_that_are_short_enough_are_dealt_out(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(TRAINING))
    questions = [line("sums", "1 + 1"), line("code", "x" * 20), line("code", "def f"), line("sums", "2 + 2")]
    questions += [line("code", "def g"), line("code", "def h"), line("chat", "Hello")]
    (tmp_path / "questions.jsonl").write_text("".join(questions))
    given = ["--questions", str(tmp_path / "questions.jsonl"), "--counts", "sums=1,code=2", "--longest", "10"]
    monkeypatch.setattr(sys, "argv", ["choose.py", *given, "--out", str(tmp_path / "a"), str(tmp_path / "b")])
    importlib.import_module("choose").main()
    assert (tmp_path / "a").read_text() == questions[0] + questions[4]
    assert (tmp_path / "b").read_text() == questions[2]
