"""Lists in a terminal: side by side where there is room, one below the other where there is not, whole in a pipe."""

import pytest

from specframe.cli.main import main
from specframe.cli.printing import columns
from specframe.cli.printing.columns import in_columns

ROWS = [("short", "a word"), ("a-longer-name", " ".join(["explained"] * 12))]


def test_with_room_an_explanation_stands_next_to_its_name():
    lines = in_columns(ROWS, 80, indent=2)
    assert lines[0] == "  short          a word"
    assert [line[17:26] for line in lines[1:]] == ["explained"] * len(lines[1:]) and len(lines) > 2


@pytest.mark.parametrize("width", [20, 40, 60])
def test_without_it_stands_below(width):
    lines = in_columns(ROWS, width)
    assert lines[:2] == ["short", "    a word"] and lines[2] == "a-longer-name"
    assert all(len(line) <= width for line in lines) and all(line.startswith("    ") for line in lines[3:])


def test_in_a_pipe_a_line_stays_a_line():
    assert in_columns(ROWS, None) == [f"short          {ROWS[0][1]}", f"a-longer-name  {ROWS[1][1]}"]
    assert in_columns([], None) == in_columns([], 40) == []


@pytest.mark.parametrize("command", ["recipes", "plugins"])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_commands_keep_to_the_terminal(command, width, monkeypatch, capsys):
    monkeypatch.setattr(columns.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([command]) == 0
    printed = capsys.readouterr().out
    assert "coral-router" in printed.split() or "hf" in printed.split()
    words = max(map(len, printed.split()))
    assert max(map(len, printed.splitlines())) <= max(width, words + 6)
