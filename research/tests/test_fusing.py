"""The comparison of a drafter alone and with copies: it runs, small, and its figures are those of its counts."""

import pytest

from tests.repo.repository import ROOT

pytestmark = pytest.mark.slow


def test_two_recipes_are_compared(analysis, capsys, tmp_path):
    (tmp_path / "prompts.txt").write_text("Hello\nWhat is a dog?\n")
    recipes = [str(ROOT / "recipes" / "small" / name) for name in ("eagle2.yaml", "lookup.yaml")]
    command = ["--data", str(tmp_path / "prompts.txt"), "--max-new-tokens", "8", "--machine", "AVX2"]
    analysis("fusing").main([*recipes, *command])
    printed = capsys.readouterr().out.splitlines()
    assert printed[1] == "AVX2" and printed[-1].startswith("| all (2) | ") and len(printed) == 7


def test_what_is_faster_takes_less_time_for_its_tokens(analysis):
    fusing = analysis("fusing")
    questions = [fusing.Question(name, "set", "math", ("?",)) for name in ("set/0", "set/1")]
    alone, copies = fusing.Count(10, 20, 40, 15.0), fusing.Count(5, 20, 50, 12.0)
    slower = fusing.Count(10, 20, 60, 16.0)
    rows = list(fusing.table(questions, {"set/0": [alone, copies], "set/1": [alone, slower]}))
    assert rows[0] == "| math (2) | 2.00 (4.0) | 2.67 (7.3) | +7.1% | -6.2% (`set/1`) |"
    assert rows[1] == rows[0].replace("math", "all")
