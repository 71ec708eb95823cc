"""`specframe export --check`, with a module that stands in for an engine: counts side by side, and one verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specframe
from specframe.cli.main import main
from specframe.interchange import check
from tests.repo.repository import ROOT

RECIPE = ROOT / "recipes" / "small" / "families" / "eagle3.yaml"
SHORT = ["sampling.max_new_tokens=8", "run.prompts=[Hello]"]
COMMAND = ["export", str(RECIPE), *SHORT, "--check", "--to"]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes a module that `export --check` runs in place of an engine; it finds the task as `task`."""

    def write(body: str) -> Path:
        module = tmp_path / "engine.py"
        module.write_text(f"def run(task):\n    {body}\n")
        monkeypatch.setattr(check, "find_engine", lambda form: module)
        return module

    return write


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """Decoded by specframe's own chain: an engine's exact answer."""
    chain = check.chain_overrides({"target": {}, "drafter": {}}, 3)
    result = specframe.load(RECIPE, overrides=[*SHORT, *chain]).generate("Hello")
    counts = {"cycles": result.acceptance.cycles, "accepted": result.acceptance.accepted}
    return {"engine": "stand-in 1.0", "texts": result.tokens, **counts}


@pytest.mark.parametrize(
    ("change", "verdict", "status"),
    [
        ({}, "arrives exactly", 0),
        ({"accepted": 0, "cycles": 7}, "arrives with a loss: accepted 0 in 7 cycles, here", 1),
        ({"texts": [[1]]}, "1 of 1 texts differ", 1),
        ({"refused": "KeyError: fc_norm"}, "refused: KeyError: fc_norm", 1),
    ],
)
def test_an_engine_s_answer_becomes_one_verdict(
    change: dict[str, Any],
    verdict: str,
    status: int,
    answer: dict[str, Any],
    engine: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine(f"return {answer | change!r}")
    assert main([*COMMAND, "vllm", "--out", str(tmp_path / "out")]) == status
    lines = capsys.readouterr().out.splitlines()
    assert verdict in lines[-1]
    ours = f"specframe {answer['cycles']} cycles, {answer['accepted']} accepted"
    assert ours in [" ".join(line.split()) for line in lines[-3:]]


def test_an_engine_gets_the_command_that_is_printed(
    answer: dict[str, Any], engine: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a folder"
    engine(f"import json; json.dump(task, open({str(tmp_path / 'task.json')!r}, 'w')); return {answer!r}")
    assert main([*COMMAND, "vllm", "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["check"]
    assert found["exact"] and found["engine"] == "stand-in 1.0" and found["counts"][0] == found["counts"][1]
    task = json.loads((tmp_path / "task.json").read_text())
    assert task["command"][:3] == ["vllm", "serve", task["target"]] and (Path(task["target"]) / "config.json").exists()
    assert json.loads(task["command"][-1])["model"] == task["folder"] == str(out)
    assert task["tokens"] == 8 and task["length"] == 3 and len(task["prompts"]) == 1


@pytest.mark.parametrize(
    ("body", "arguments", "message"),
    [
        ("import no_such_engine", ["vllm", "--check"], "no_such_engine'; --python names the Python that has it"),
        ("raise SystemExit('crashed')", ["vllm", "--check"], "the engine gave no answer"),
        ("return 1", ["vllm", "--check", "--python", "/no/python"], "/no/python cannot be run"),
        ("", ["vllm", "--python", "python3"], "--python, --prompts and --limit belong to --check"),
    ],
)
def test_a_check_that_cannot_be_done_is_one_line_and_exit_status_2(
    body: str,
    arguments: list[str],
    message: str,
    engine: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine(body)
    assert main(["export", str(RECIPE), *SHORT, "--out", str(tmp_path / "out"), "--to", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_form_whose_engine_cannot_be_run_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, "sglang", "--out", str(tmp_path / "out")]) == 2
    assert "the form 'sglang' cannot be checked; these can: vllm, " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", check.PACKAGES)
def test_every_form_that_can_be_checked_has_an_engine(form: str) -> None:
    assert "def run(task" in check.find_engine(form).read_text()


def test_what_is_rounded_is_taken_in_floats() -> None:
    drafter = {"use": "eagle3", "quantize": "int8", "head": {"use": "trimmed", "quantize": "int8"}, "fresh": None}
    rounded = check.chain_overrides({"target": {"quantize": "int4"}, "drafter": drafter}, 2)[-3:]
    assert rounded == ["target.quantize=null", "drafter.quantize=null", "drafter.head.quantize=null"]
