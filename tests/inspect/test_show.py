import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

import specframe
from specframe.cli.main import main
from specframe.cli.render.trees import colour, draw
from specframe.inspect.recorder import Bonus, TracedToken
from specframe.inspect.trace import trace


@pytest.fixture(scope="module")
def found(sampled_recipe):
    return trace(specframe.load(sampled_recipe), "hello there")


def test_the_terminal_shows_path_and_sources(found):
    console = Console(width=100)
    with console.capture() as captured:
        for cycle in found.cycles:
            console.print(draw(cycle))
    lines = captured.get().splitlines()
    assert sum(line.count("✓ ") for line in lines) == sum(len(cycle.path) for cycle in found.cycles)
    assert sum("+ " in line for line in lines) == len(found.cycles)
    nodes = sum(len(cycle.nodes) for cycle in found.cycles)
    assert len(lines) == nodes + 2 * len(found.cycles)  # and a heading and a bonus each
    text = "".join(piece.text for piece in found.pieces)
    assert colour(found, brackets=False).plain == text
    marked = colour(found, brackets=True).plain
    assert marked.replace("[", "").replace("]", "") == text
    drafted = "".join(piece.text for piece in found.pieces if piece.source == "draft")
    assert "".join(re.findall(r"\[(.*?)\]", marked, re.DOTALL)) == drafted


def test_a_text_that_ends_within_a_cycle_is_marked(found):
    last = found.cycles[0]
    cut = replace(found, cycles=(replace(last, kept=len(last.path)),))
    console = Console(width=100)
    with console.capture() as captured:
        console.print(draw(cut.cycles[0]))
    assert "1 cut off: the text ended here" in captured.get()


def test_the_terminal_shows_tokens_as_text(found):
    cycle = found.cycles[0]
    evil = replace(
        found,
        cycles=(
            replace(
                cycle,
                nodes=tuple(replace(node, text="<script>alert(1)</script>") for node in cycle.nodes),
                bonus=Bonus(5, "<b>\x00\x1b", 0.5),
            ),
        ),
        pieces=(TracedToken(5, "\x1b[red]", "bonus", 0), TracedToken(6, "\x00", "bonus", 1)),
    )
    console = Console(width=100)
    with console.capture() as captured:
        console.print(draw(evil.cycles[0]), colour(evil, brackets=True))
    assert "\x1b" not in captured.get() and "\\u0000" in captured.get()
    assert "<script>alert(1)</script>" in captured.get()


def test_show_prints_the_first_cycles_and_writes_the_page(recipe, tmp_path, capsys):
    page = tmp_path / "new" / "show.html"
    assert main(["show", str(recipe), "--prompt", "what?", "--cycles", "1", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert "> what?" in out and "cycle 1" in out and "cycle 2" not in out and "tau" in out
    cycles = int(re.search(r"\((\d+) cycles\)", out)[1])
    assert f"{cycles - 1} more: --cycles {cycles} prints them" in out
    assert f"written to {page}" in out
    assert page.read_text(encoding="utf-8").count("<article") == cycles


def test_show_takes_the_first_prompt_of_the_recipe(recipe, capsys):
    assert main(["show", str(recipe), "--cycles", "0"]) == 0
    out = capsys.readouterr().out
    assert "> hello there" in out and "good morning" not in out and "cycle 1" not in out


def test_show_gives_the_trace_as_json(recipe, capsys):
    assert main(["show", str(recipe), "--json", "sampling.max_new_tokens=5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [piece["token"] for piece in found["pieces"]] == specframe.load(recipe).generate("hello there").tokens[0][:5]
    assert found["cycles"][0]["nodes"][0]["verdict"] == "root"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prompt", ""],
        ["--prompt", "a" * 500],
        ["run.prompts=[]"],
        ["--cycles", "-1"],
        ["--html", "{folder}"],
        ["--html", "{recipe}/page.html"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_clear_line_and_exit_status_2(recipe, tmp_path, arguments, capsys):
    before = recipe.read_text()
    arguments = [argument.format(folder=tmp_path, recipe=recipe) for argument in arguments]
    assert main(["show", str(recipe), *arguments]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.strip().splitlines()) == 1 and not captured.out
    assert recipe.read_text() == before


def test_a_missing_recipe_is_one_clear_line(tmp_path, capsys):
    assert main(["show", str(tmp_path / "none.yaml")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_failed_run_leaves_an_old_page_and_makes_no_new_one(recipe, tmp_path):
    old, new = tmp_path / "old.html", tmp_path / "new.html"
    old.write_text("kept")
    for page in (old, new):
        assert main(["show", str(recipe), "--prompt", "a" * 500, "--html", str(page)]) == 2
    assert old.read_text() == "kept" and not new.exists()
