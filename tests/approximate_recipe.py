"""A recipe whose prompt is longer than the part that its target reads or keeps, and what commands say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specframe.cli.main import main

RECIPE = """
target: {use: hf, model: zoo://talk-7m PART}
drafter: {use: lookup}
verifier: {use: match}
sampling: {temperature: 0, max_new_tokens: 8}
run: {prompts: ["One day a fox met a bear at the river. The bear was old. The fox was young and hungry. Who was old?"]}
"""


def write_recipe(folder: Path, part: str = "") -> Path:
    """Writes the recipe with this option of the target, such as `keep: {use: window}`; without one it is exact."""
    path = folder / ("part.yaml" if part else "full.yaml")
    path.write_text(RECIPE.replace(" PART", f", {part}" if part else ""))
    return path


def check_run(path: Path, capsys: Any, *overrides: str) -> None:
    """A run calls it lossy."""
    assert main(["run", str(path), "--json", "run.repeats=0", *overrides]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["lossless"] is False and found["approximate"] is True


def check_certificate(found: Any) -> None:
    """Its certificate is of the composition alone, with the distance from the whole target."""
    assert found.approximate and not found.lossless and found.composed
    assert found.distance["shortened"] == 1 and found.distance["mean_tv"] > 0


def check_no_answers(path: Path, folder: Path, capsys: Any, option: str) -> None:
    """Data is not distilled from it: one line names the option to leave out."""
    texts = folder / "prompts.txt"
    texts.write_text("Who was old?\n")
    assert main(["distill-data", str(path), "--prompts", str(texts), "--out", str(folder / "answers")]) == 2
    error = capsys.readouterr().err
    assert f"add target.{option}=null" in error and error.count("\n") == 1
