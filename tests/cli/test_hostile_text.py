"""Names, prompts, answers and messages are text: never markup, control sequences, HTML or mathematics."""

import errno
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from specframe.cli.main import main
from specframe.cli.render.certificate import print_certificate
from specframe.cli.render.figures import print_figures, print_place
from specframe.cli.render.foreign import print_function
from specframe.decoding.pipeline import Pipeline
from specframe.recipes.discovery import discover
from specframe.recipes.registry import Registration
from specframe_report.comparison import compare, print_comparison
from specframe_report.page import write_report
from specframe_report.summary import summarise
from specframe_report.tables import print_table
from tests.bench.synthetic import World

NAME = "[red]x[/blue] [/] :smile: $^$ <script>alert(1)</script> ![p](http://h/p) `c` |\x1b]52;c;aGk=\x07\x1b[2J\ry"
SHOWN = NAME.replace("\x1b", "\\x1b").replace("\x07", "\\x07").replace("\r", "\\x0d")


def check(text):
    assert not {c for c in text if ord(c) < 32 or 127 <= ord(c) < 160} - {"\n", "\t"}


@pytest.fixture
def bench():
    """A bench whose contestant and task have a hostile name."""
    found = json.dumps(World(6).bench(2))
    for name in ('"falcon"', '"code"', '"A processor"', '"recipes/falcon.yaml"'):
        found = found.replace(name, json.dumps(NAME))
    return json.loads(found)


@pytest.fixture
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")


def test_a_bench_prints_names_as_text(bench, wide, capsys):
    print_table(summarise(bench))
    print_comparison(compare(bench, bench))
    output = capsys.readouterr().out
    assert output.count(SHOWN) >= 3
    check(output)


def test_a_report_is_free_of_html_and_links_of_others(bench, tmp_path):
    files = write_report(bench, summarise(bench), tmp_path)
    assert sum(file.suffix == ".png" for file in files) == 5, "the plots are drawn whatever the names are"
    page = (tmp_path / "report.md").read_text()
    check(page)
    for name in ("table.md", "table.tex", "figures.csv"):
        check((tmp_path / name).read_text())
    assert "&lt;script&gt;" in (tmp_path / "table.md").read_text()
    body, _, command = page.partition("```bash")
    assert "<script" not in body and "![p]" not in body and "&lt;script&gt;" in body
    rows = [line for line in body.splitlines() if "alert(1)" in line and line.startswith("|")]
    assert rows and all(row.endswith("|") for row in rows)
    assert SHOWN in command
    assert (
        "script&gt;alert" in (tmp_path / "alpha_by_depth.svg").read_text()
        or "<script" not in (tmp_path / "alpha_by_depth.svg").read_text()
    )


def test_a_block_of_code_cannot_be_ended_from_within(bench, tmp_path):
    bench["provenance"]["command"] = ["specframe", "bench", "a\n```\n# Hello"]
    write_report(bench, summarise(bench), tmp_path)
    assert (tmp_path / "report.md").read_text().endswith("````bash\nspecframe bench 'a\n```\n# Hello'\n````\n")


def test_certificates_and_figures_print_names_as_text(wide, capsys):
    case = {
        "name": NAME,
        "tv": 0.0,
        "first_token_tv": 0.0,
        "branches": 1,
        "side_by_side": True,
        "exhausted": True,
        "mass": 1.0,
    }
    worst = {"worst_sequence": [1], "wanted": 0.5, "got": 0.4}
    case |= {"tokens": 3, "forced": 0, "reduced": [], **worst}
    found = {
        "cases": [case],
        "controls": [case],
        "audit": [NAME],
        "tv": 0.0,
        "interrupted": False,
        "real": None,
        "distance": None,
    }
    found |= {"shortcuts": [], "accepting": True, "levels": 1, "cycles": 1, "smaller": [], "weights_unread": []}
    found |= {
        "control_failed": True,
        "lossless": True,
        "composed": True,
        "approximate": False,
        "branches": 2,
        "promised": True,
        "batches": True,
    }
    print_certificate(found, NAME)
    print_function({"function": NAME, "cases": [case], "lossless": False, "different": True, "tv": 0.5, **worst})
    output = capsys.readouterr().out
    assert output.count(SHOWN) == 6
    check(output)


def test_errors_are_one_visible_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["validate", f"{NAME.replace('/', '')}.yaml"]) == 2
    assert main(["validate", "r.yaml\x1b[2J\nr.yaml"]) == 2
    output = capsys.readouterr().err
    assert "\\x1b[2J" in output and "no such recipe" in output
    check(output)
    for words in (["plugins", f"--{NAME}"], [NAME], ["plugins", NAME], ["profile", "falcon", "--draw", NAME]):
        assert main(words) == 2
        output = capsys.readouterr().err
        assert "\\x1b" in output and "--help` lists all" in output and len(output.splitlines()) == 1
        check(output)


def test_messages_of_broken_plugins_are_text(monkeypatch, capsys):
    registry = discover()
    registry.broken["bad"] = NAME
    registry.add(Registration("tree", "odd", "a.b:C", NAME, "bad"))
    monkeypatch.setattr("specframe.recipes.discovery.discover", lambda: registry)
    assert main(["plugins"]) == 0
    output = capsys.readouterr().out
    assert output.count(SHOWN) == 2
    check(output)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_models_output_does_not_steer_the_terminal(recipe, tmp_path, batch, monkeypatch, wide, capsys):
    decode = Pipeline.decode
    monkeypatch.setattr(Pipeline, "decode", lambda self, tokens: NAME + decode(self, tokens) + "\r\n")
    arguments = ["run", str(recipe), "run.repeats=0", f"run.batch={batch}", "--out", str(tmp_path / "\x1b[2Jout")]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert SHOWN in output and "\\x1b[2Jout" in output
    check(output)


def test_show_and_its_page_hold_a_hostile_prompt_as_text(recipe, tmp_path, wide, capsys):
    page = tmp_path / "page.html"
    named = recipe.with_name(NAME.replace("/", "").replace("\x1b", "").replace("\r", "\x08")[:40] + ".yaml")
    recipe.rename(named)
    assert main(["show", str(named), "--prompt", f"hello {NAME}", "--html", str(page)]) == 0
    output = capsys.readouterr().out
    check(output)
    assert "<script>alert" not in page.read_text() and "[red]x[/blue]" in output
    check(page.read_text())


def fill_disk(monkeypatch, name):
    """No file of this name can be written from here on."""
    write = Path.write_text

    def full(path, *arguments, **options):
        if name in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", full)


@pytest.mark.parametrize(("shown", "last"), [([], "peak memory"), (["--json"], '"peak_memory_bytes": ')])
def test_a_full_disk_does_not_cost_a_runs_figures(recipe, tmp_path, monkeypatch, capsys, shown, last):
    fill_disk(monkeypatch, "run.json")
    assert main(["run", str(recipe), "run.repeats=0", "--out", str(tmp_path), *shown]) == 2
    printed = capsys.readouterr()
    assert printed.err == f"{tmp_path / 'run.json'} cannot be written: No space left on device\n"
    assert last in printed.out and "written to" not in printed.out


def test_a_pipe_without_a_reader_does_not_cost_the_file(recipe, tmp_path, monkeypatch):
    def gone(*_):
        raise BrokenPipeError

    monkeypatch.setattr("specframe.cli.render.figures.print_figures", gone)
    monkeypatch.setattr(sys, "stderr", io.StringIO())  # it is closed
    assert main(["run", str(recipe), "run.repeats=0", "--out", str(tmp_path)]) == 141
    assert json.loads((tmp_path / "run.json").read_text())["figures"]["tau"] >= 1


def test_a_full_disk_does_not_cost_a_profiles_figures(recipe, tmp_path, monkeypatch, capsys):
    fill_disk(monkeypatch, "found.json")
    out = tmp_path / "found.json"
    assert main(["profile", str(recipe), "--sizes", "1", "--json", "--out", str(out)]) == 2
    printed = capsys.readouterr()
    assert printed.err == f"{out} cannot be written: No space left on device\n"
    assert json.loads(printed.out)["acceptance"]


def test_a_full_disk_does_not_cost_the_page_that_is_there(recipe, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.html"
    page.write_text("the old page")
    fill_disk(monkeypatch, "page.html")
    assert main(["show", str(recipe), "--html", str(page)]) == 2
    assert capsys.readouterr().err == f"{page} cannot be written: No space left on device\n"
    assert page.read_text() == "the old page" and [path.name for path in tmp_path.glob("*page*")] == ["page.html"]


def test_text_that_is_not_unicode_is_refused(recipe, capsys):
    assert main(["run", str(recipe), "--prompt", "hello \udcff"]) == 2
    assert main(["run", str(recipe), "run.prompts=[a\udcff]"]) == 2
    assert main(["run", str(recipe), 'run.prompts=["\\ud800"]', "run.repeats=0"]) == 2
    output = capsys.readouterr().err.splitlines()
    assert len(output) == 3 and all("is not Unicode text" in line or "invalid Unicode" in line for line in output)


def test_a_chat_template_that_raises_is_one_line(recipe, model_folder, tmp_path, capsys):
    folder = tmp_path / "model"
    folder.mkdir()
    for path in model_folder.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    for template in ("{{ raise_exception('no \\x1b[2J thanks') }}", "{{ messages[7].content }}", "{% bad"):
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
        assert main(["run", str(recipe), f"target.model={folder}", "run.chat=true", "run.repeats=0"]) == 2
        output = capsys.readouterr().err
        assert output.startswith("the target's chat template refuses the prompt: ") and len(output.splitlines()) == 1
        check(output)


def test_a_terminal_without_the_characters_gets_escapes(tmp_path, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stderr", stream)
    assert main(["validate", str(tmp_path / "größe.yaml")]) == 2
    stream.flush()
    assert b"gr\\xf6\\xdfe.yaml: no such recipe" in stream.buffer.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("command", [["show"], ["run", "run.repeats=0", "--out", "OUT"], ["profile", "--sizes", "1"]])
def test_a_terminal_of_few_characters_shows_results(recipe, tmp_path, monkeypatch, encoding, command):
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    name, *rest = [str(tmp_path / "out") if word == "OUT" else word for word in command]
    assert main([name, str(recipe), *rest]) == 0
    stream.flush()
    printed = stream.buffer.getvalue().decode(encoding)
    assert len(printed.splitlines()) > 3 and "tau" in printed
    if name == "show":
        assert "cycle 1" in printed and ("\\u2713" in printed or "accepted" in printed)


def test_a_full_disk_after_the_output_is_one_line():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "specframe", "plugins"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "the output cannot be written: No space left on device\n")


def test_figures_name_the_folder_as_text(wide, capsys):
    summary = {"tau": 1.0, "cycles": 1, "alpha": [], "tokens_per_second": 1.0, "speedup": None, "speedup_hf": None}
    summary |= {"overhead": 0.0, "phases": {NAME: 1.0}, "forward_ms": {}, "identical_to_generate": None, "costs": None}
    summary |= {"ahead": None, "drafter": {}, "devices": None, "images": None}
    print_figures(summary | {"lossless": True, "approximate": False, "peak_memory_bytes": 1})
    print_place(Path(NAME.replace("//", "")))
    output = capsys.readouterr().out
    assert SHOWN in output and SHOWN.replace("//", "") in output
    check(output)
