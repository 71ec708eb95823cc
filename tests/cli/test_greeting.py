"""`specframe` without arguments, and how the terminal's width and colours are respected."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from specframe.cli.bench import breaks_promise
from specframe.cli.group import COMMANDS, PLACES, TRY
from specframe.cli.main import main
from specframe.cli.render.figures import _rows, print_figures, print_place
from specframe.files.text import counted, open_console
from specframe.recipes.discovery import discover
from specframe.recipes.registry import Registry

ESCAPE = "\x1b"
SUMMARY = {
    "tokens": 96,
    "cycles": 28,
    "tau": 3.43,
    "alpha": [0.9, 0.7, 0.5, 0.33],
    "tokens_per_second": 61.4,
    "speedup": 1.8,
    "speedup_range": [1.7, 1.9],
    "speedup_hf": 1.9,
    "speedup_hf_range": [1.8, 2.0],
    "plain_vs_hf": 1.02,
    "overhead": 0.068,
    "phases": {"draft": 0.2, "score": 0.7, "verify": 0.02, "commit": 0.06, "other": 0.02},
    "forward_ms": {"target": 15.1, "drafter": 1.2},
    "lossless": True,
    "approximate": False,
    "identical_to_generate": True,
    "divergences": [],
    "repeats": 3,
    "peak_memory_bytes": 460_000_000,
    "ahead": None,
    "drafter": {"review": {"forwards": 38, "tokens a forward": 1.11, "accepted": 0.0889}},
    "devices": None,
    "images": None,
    "nodes": 2.71,
    "nodes_at_most": 15,
    "costs": {"draft": 0.002},
}
"""The figures of a run, as `summarise` gives them."""


def test_no_arguments_greet(capsys):
    assert main([]) == 0
    printed = capsys.readouterr()
    assert "specframe run falcon" in printed.out and not printed.err


def test_a_core_alone_marks_what_needs_the_plugins(monkeypatch, capsys):
    core = Registry()
    core.entries = [entry for entry in discover().entries if entry.package == "specframe"]
    monkeypatch.setattr("specframe.recipes.discovery.discover", lambda: core)
    for user in ("versions", "registry"):
        monkeypatch.setattr(f"specframe.recipes.{user}.missing_methods", lambda: ["specframe-report"])
    monkeypatch.setattr("specframe.cli.recipes.missing_methods", lambda: ["specframe-report"])
    assert main([]) == 0
    first, _, rest = capsys.readouterr().out.partition('After `pip install "specframe[methods]"`')
    assert "specframe run MODEL" in first and "specframe run falcon" not in first and "specframe run falcon" in rest
    assert main(["--help"]) == 0
    assert '(needs "specframe[methods]")' in " ".join(capsys.readouterr().out.split())
    assert main(["recipes"]) == 0
    out, err = capsys.readouterr()
    names = {" ".join(line.split("  ")[0].split()) for line in out.splitlines()}
    assert {"falcon *", "suffix *", "qwen/suffix"} <= names
    assert err == '* needs what is not installed here: pip install "specframe[methods]"\n'
    assert main(["explain", "falcon"]) == 2
    assert 'pip install "specframe[methods]"' in capsys.readouterr().err


@pytest.mark.parametrize("columns", [40, 60, 80, 99, 100, 120, 200])
def test_it_fits_every_width(columns, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert " ".join(" ".join(lines).split()).count("specframe ") >= len(TRY)


def test_what_it_names_exists(capsys):
    for command in TRY:
        program, name, *rest = shlex.split(command)
        assert program == "specframe" and name in COMMANDS
        if name in ("run", "show", "certify") and rest != ["MODEL"]:
            assert main(["validate", rest[0]]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_figures_fit_every_width(columns, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    print_figures(SUMMARY)
    print_place(Path("runs/falcon/run.json"))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns and not [line for line in lines if line != line.rstrip()]
    printed = " ".join(" ".join(lines).split())
    assert "the bonus token included" in printed and "2.7 drafted a cycle" in printed


@pytest.mark.parametrize(
    ("overhead", "shown"), [(0.068, "6.8% of the"), (9.99, "999.0% of the"), (43.466, "43 times the")]
)
def test_overhead_of_a_target_without_a_network_is_no_percentage(overhead, shown, capsys):
    print_figures(SUMMARY | {"overhead": overhead})
    assert f"{shown} forward passes' time" in " ".join(capsys.readouterr().out.split())


def test_in_a_pipe_a_figure_is_a_line(capsys):
    print_figures(SUMMARY)
    shown = [line.partition("  ")[0] for line in capsys.readouterr().out.splitlines() if line]
    assert shown == [name for name, _ in _rows(SUMMARY)]


def test_the_two_lines_about_the_text_agree(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    apart = {"gap": 9.0, "noise": 3.8e-6}
    print_figures({**SUMMARY, "text": ["a"], "lossless": True, "identical_to_generate": False, "divergences": [apart]})
    printed = capsys.readouterr().out
    assert "NO: 1 of 1 texts differ" in printed
    assert "NO: differs from plain decoding: run `specframe certify`" in printed
    assert "as the verifier promises" not in printed


@pytest.mark.parametrize(
    ("kind", "lossless", "differing", "broken"),
    [
        ("recipe", True, ["a/2"], True),
        ("recipe", True, [], False),
        ("recipe", False, ["a/2"], False),
        ("assisted", True, ["a/2"], False),
    ],
)
def test_a_recipe_whose_texts_differ_breaks_its_promise(kind, lossless, differing, broken):
    entry = {"kind": kind, "lossless": lossless, "overall": {"identity": {"differing": differing}}}
    assert breaks_promise(entry) is broken
    assert not breaks_promise(entry | {"overall": None})


def test_one_is_one(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    print_figures({**SUMMARY, "cycles": 1})
    assert "(1 cycle)" in capsys.readouterr().out
    print_figures({**SUMMARY, "cycles": 2})
    assert "(2 cycles)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 prompts"), (1, "1 prompt"), (2, "2 prompts"), (1234, "1,234 prompts")]
)
def test_counts_read_as_words(count, shown):
    assert counted(count, "prompt") == shown


@pytest.mark.parametrize(
    "command", ["run", "chat", "show", "profile", "doctor", "train", "certify", "validate", "serve"]
)
def test_help_names_recipes_by_file_and_name(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "a recipe file, or the name of one that `specframe recipes` lists" in shown


def test_no_colour_where_none_is_wanted(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    open_console().print("drafted", style="green")
    assert ESCAPE in capsys.readouterr().out, "the control: with colours there are escapes"
    monkeypatch.setenv("NO_COLOR", "1")
    open_console().print("drafted", style="green")
    assert ESCAPE not in capsys.readouterr().out


def test_validate_gives_values_and_origins_as_json(capsys):
    assert main(["validate", "small/lookup", "--json", "run.seed=7"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["valid"] and found["parts"]["drafter"] == "specframe/lookup"
    assert found["values"]["run.seed"] == {"value": 7, "origin": "command line"}


@pytest.mark.parametrize("wanted", [True, False])
def test_help_is_coloured_in_a_terminal_alone(wanted, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "" if wanted else "1")
    assert main(["run", "--help"]) == 0
    assert (ESCAPE in capsys.readouterr().out) is wanted


LOADED = """
import sys
from specframe.cli.main import main
assert main({words!r}) == 0
print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], [], *([name, "--help"] for name in ("run", "bench", "import", "serve"))]
)
def test_help_imports_one_command_at_most_and_no_torch(words):
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(words=words)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.split())
    places = {name: PLACES.get(name, name).partition(":")[0] for name in (*COMMANDS, *words)}
    modules, own = ({f"specframe.cli.{places[name]}" for name in names} for names in (COMMANDS, words[:1]))
    assert loaded & modules == own & modules and not loaded & {"torch", "transformers", "uvicorn"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_line_in_the_list_agrees_with_its_help(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([name, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split()).lower()
    assert COMMANDS[name].partition(";")[0].lower() in shown
