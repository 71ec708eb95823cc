"""A recipe whose target keeps a part of its prompts is called lossy by every command, and bad input is one line."""

from __future__ import annotations

import json

import pytest

from specframe.certify.recipe import certify
from specframe.cli.main import main

RECIPE = """
target: {use: hf, model: zoo://talk-7m, keep: {use: speckv, budget: 24, window: 8, lookahead: 4}}
drafter: {use: lookup}
verifier: {use: match}
sampling: {temperature: 0, max_new_tokens: 8}
run: {prompts: ["One day a fox met a bear at the river. The bear was old. The fox was young and hungry. Who was old?"]}
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "part.yaml"
    path.write_text(RECIPE)
    return path


def test_a_run_and_a_certificate_call_it_lossy(recipe, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(recipe), "--json", "run.repeats=0"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["lossless"] is False and found["approximate"] is True
    proven = certify(recipe, budget=2000)
    assert proven.approximate and not proven.lossless and proven.composed
    assert proven.distance["shortened"] == 1 and proven.distance["mean_tv"] > 0


@pytest.mark.parametrize("form", ["target.native=true", "target.cache=bfloat16 target.native=true"])
def test_native_passes_keep_a_part_too(recipe, capsys, monkeypatch, tmp_path, form):
    monkeypatch.chdir(tmp_path)
    assert main(["run", str(recipe), "--json", "run.repeats=0", *form.split()]) == 0
    assert json.loads(capsys.readouterr().out)["approximate"] is True


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("target.keep.budget=8", "a budget of 8 does not exceed the window of 8"),
        ("target.keep.lookahead=0", "the lookahead is at least 1 token, not 0"),
        ("target.keep={use: upper}", "in int8, which rounds them in blocks"),
        ("target.cache=int8; target.native=true", "in int8, which rounds them in blocks"),
        ("target.compile=true", "goes without `compile`"),
        ("target.keep.drafter={use: lookup}", "speckv: a small model drafts the likely answer, and Lookup has none"),
        ("target.keep={use: specky}", "did you mean 'speckv'"),
        ("target.keep.budget=100000", "100000"),
    ],
)
def test_bad_input_is_one_line(recipe, capsys, options, words):
    assert main(["run", str(recipe), *options.split("; ")]) == 2
    error = capsys.readouterr().err
    assert words in error and error.strip().count("\n") == 0, error


def test_data_is_not_distilled_from_it(recipe, tmp_path, capsys):
    texts = tmp_path / "prompts.txt"
    texts.write_text("Who was old?\n")
    assert main(["distill-data", str(recipe), "--prompts", str(texts), "--out", str(tmp_path / "answers")]) == 2
    error = capsys.readouterr().err
    assert "add target.keep=null" in error and error.count("\n") == 1
