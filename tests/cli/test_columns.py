"""Lists in a terminal: side by side where there is room, one below the other where there is not, whole in a pipe."""

import re
import sys

import pytest

from specframe.cli.main import main
from specframe.cli.render import print_lines, print_rows

STYLE = re.compile(r"\x1b\[[0-9;]*m")
ROWS = [("short", "a word"), ("a-longer-name", " ".join(["explained"] * 12))]


@pytest.fixture
def terminal(monkeypatch):
    """Makes the output that of a terminal of so many columns."""

    def make(width):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")

    return make


def test_with_room_an_explanation_stands_next_to_its_name(terminal, capsys):
    terminal(80)
    print_rows(ROWS, indent=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  short          a word"
    assert [line[17:26] for line in lines[1:]] == ["explained"] * len(lines[1:]) and len(lines) > 2


@pytest.mark.parametrize("width", [20, 40, 60])
def test_without_both_are_broken(width, terminal, capsys):
    terminal(width)
    print_rows(ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width and line == line.rstrip() for line in lines)
    assert "".join("".join(line.split()) for line in lines).count("explained"[:5]) == 12


def test_in_a_pipe_a_line_stays_a_line(capsys):
    print_rows(ROWS)
    print_lines(["a " * 400, "", "  b"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"short          {ROWS[0][1]}", f"a-longer-name  {ROWS[1][1]}"]
    assert lines[2:] == [("a " * 400).rstrip(), "", "  b"]


def test_a_line_that_is_too_long_is_broken_and_set_in(terminal, capsys):
    terminal(16)
    print_lines(["  a " + "word " * 6, "short", "unbroken" * 4])
    assert capsys.readouterr().out.splitlines() == [
        "  a word word",
        "  word word word",
        "  word",
        "short",
        "unbroken" * 2,
        "unbroken" * 2,
    ]


@pytest.mark.parametrize("command", ["recipes", "plugins"])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_commands_keep_to_the_terminal(command, width, terminal, capsys):
    terminal(width)
    assert main([command]) == 0
    printed = capsys.readouterr().out
    assert "coral-router" in printed.split() or "hf" in printed.split()
    words = max(map(len, printed.split()))
    assert max(map(len, printed.splitlines())) <= max(width, words + 6)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("name", ["dynamic", "falcon", "train", "match", "online"])
def test_explanations_keep_to_the_terminal(name, width, terminal, capsys):
    terminal(width)
    assert main(["explain", name]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= width
    assert "Options:" not in printed and "Args:" not in printed, "the options follow in full"


def test_an_explanation_in_a_pipe_is_as_it_is_written(capsys):
    assert main(["explain", "dynamic"]) == 0
    printed = capsys.readouterr().out
    assert (
        "\n  The `nodes` most probable nodes of a beam search below the root (Li et al. 2024, EAGLE-2, section 4).\n"
        in printed
    )
    assert "  depth: integer (default 4)\n      the largest number of levels to draft\n" in printed


@pytest.mark.sampled
@pytest.mark.parametrize("width", [40, 50, 60, 80, 200])
def test_a_profile_keeps_to_the_terminal_and_shows_all_of_it(width, recipe, terminal, capsys):
    terminal(width)
    assert main(["profile", str(recipe), "--sizes", "1,4", "--width", "5", "--depth", "2"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= width
    words = printed.split()
    assert {"#1", "#5", "visits", "calibration"} <= set(words) and ("fastest" in words or "best" in words)
    assert words.count("accepted") == (1 if width >= 60 else -(-5 // ((width - 20) // 7)))


@pytest.mark.sampled
@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_diagnosis_keeps_to_the_terminal(width, recipe, terminal, capsys):
    terminal(width)
    assert main(["doctor", str(recipe), "sampling.max_new_tokens=8"]) in (0, 1)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= width


@pytest.mark.parametrize("width", [40, 80, 200])
def test_trees_and_figures_of_show_keep_to_the_terminal(width, recipe, terminal, capsys):
    terminal(width)
    assert main(["show", str(recipe), "--cycles", "2"]) == 0
    printed = STYLE.sub("", capsys.readouterr().out)
    trees, _, text_and_figures = printed.rpartition(" more: ")
    figures = text_and_figures[text_and_figures.index("\ntau") :]
    for part in (trees, figures):  # between them the text itself is left to the terminal to wrap
        assert max(len(line.rstrip()) for line in part.splitlines()) <= width
