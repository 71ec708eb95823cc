"""Prompts with pictures in a bench: the same question about another picture is another prompt."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from specframe.cli.main import main
from tests.bench.conftest import write_recipe

QUICK = ["--data", "seen.jsonl", "--repeats", "1", "--max-new-tokens", "6"]


@pytest.fixture
def seeing(seeing_folder: Path, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a recipe of a target that sees, and a question about two pictures, in two turns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(import_module("specframe_report.page"), "_draw", lambda summary, folder: [])
    write_recipe(tmp_path / "lookup.yaml", seeing_folder, "drafter: {use: lookup}")
    for number, photo in enumerate(photos):
        (tmp_path / f"{number}.png").write_bytes(photo.read_bytes())
    lines = [json.dumps({"turns": ["what is it", "and what else"], "image": f"{n}.png"}) for n in range(len(photos))]
    (tmp_path / "seen.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.mark.parametrize("turns", [1, 2])
def test_every_contestant_sees_the_pictures(turns: int, seeing: Path) -> None:
    assert main(["bench", "lookup.yaml", "plain", "hf:generate", "--turns", str(turns), *QUICK]) == 0
    results = json.loads((seeing / "runs" / "bench" / "lookup" / "results.json").read_text())
    assert [prompt["id"] for prompt in results["prompts"]] == ["seen/0", "seen/1"]
    assert len(results["runs"]) == 3 * 2 * turns and all(run["identical"] for run in results["runs"])
    assert all(run["as_plain"] for run in results["runs"])


def test_answers_differ_by_picture_alone(seeing: Path, capsys) -> None:
    """Else the test above would pass with every picture left out."""
    found = {}
    for number in range(2):
        prompt = ["--prompt", "what is it", "--image", f"{number}.png", "--json", "run.repeats=0"]
        assert main(["run", "lookup.yaml", *prompt]) == 0
        found[number] = json.loads(capsys.readouterr().out.splitlines()[-1])["text"]
    assert found[0] != found[1]


@pytest.mark.parametrize(("image", "words"), [("none.png", "there is no file"), ([1], "`image` must name a file")])
def test_pictures_that_cannot_be_are_one_line(image: object, words: str, seeing: Path, capsys) -> None:
    (seeing / "seen.jsonl").write_text(json.dumps({"prompt": "what is it", "image": image}))
    assert main(["bench", "lookup.yaml", *QUICK]) == 2
    error = capsys.readouterr().err
    assert words in error and "seen.jsonl:1" in error and len(error.splitlines()) == 1


def test_a_target_of_texts_is_refused(seeing: Path, model_folder: Path, capsys) -> None:
    write_recipe(seeing / "lookup.yaml", model_folder, "drafter: {use: lookup}")
    assert main(["bench", "lookup.yaml", *QUICK]) == 2
    assert "image" in capsys.readouterr().err
