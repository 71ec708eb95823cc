"""A recipe whose target keeps a part of its prompts is called lossy by every command, and bad input is one line."""

from __future__ import annotations

import pytest

from specframe.certify.recipe import certify
from specframe.cli.main import main
from tests.approximate_recipe import check_certificate, check_no_answers, check_run, write_recipe

PART = "keep: {use: speckv, budget: 24, window: 8, lookahead: 4}"


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path, PART)


def test_a_run_and_a_certificate_call_it_lossy(recipe, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    check_run(recipe, capsys)
    check_certificate(certify(recipe, budget=2000))


@pytest.mark.parametrize("form", ["target.native=true", "target.cache=bfloat16 target.native=true"])
def test_native_passes_keep_a_part_too(recipe, capsys, monkeypatch, tmp_path, form):
    monkeypatch.chdir(tmp_path)
    check_run(recipe, capsys, *form.split())


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
    check_no_answers(recipe, tmp_path, capsys, "keep")
