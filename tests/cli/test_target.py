"""A target that has to be fetched and cannot be: `run` decodes with the other one and reports it, the rest refuses."""

from __future__ import annotations

import json

import pytest

from specframe.cli.main import main

SMOKE = ["sampling.max_new_tokens=4", "run.repeats=0", "run.prompts=[Hello]"]
REASON = "zoo://smollm2-135m is not on this machine and cannot be fetched: HF_HUB_OFFLINE is set"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Falcon for a target that is not on this machine."""
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "target: {use: hf, model: zoo://smollm2-135m, fallback: zoo://talk-7m}\n"
        "drafter: {use: falcon, weights: zoo://falcon}\n"
        "tree: {use: chain, depth: 2}\n"
        "verifier: match\n"
        "loss: [{use: distillation}]\n"
        "train: {data: [texts.jsonl], rollout: {use: glancing}}\n"
    )
    return path


def test_run_decodes_with_the_other_target_and_reports_it(recipe, tmp_path, capsys):
    assert main(["run", str(recipe), *SMOKE, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith(f"target: zoo://talk-7m, because {REASON}")
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["target"]["model"] == "zoo://talk-7m" and written["target"]["asked"] == "zoo://smollm2-135m"
    assert written["target"]["reason"].startswith(REASON)
    assert written["recipe"]["data"]["target"]["model"] == "zoo://talk-7m"
    assert written["origins"]["target.model"] == f"{recipe}:1"
    assert written["weights"] == {"drafter.weights": "zoo://talk-7m-falcon"}


def test_the_other_target_may_have_its_old_name(recipe, tmp_path, capsys):
    recipe.write_text(recipe.read_text().replace("fallback", "otherwise"))
    with pytest.warns(FutureWarning, match="target.otherwise is now called 'fallback'"):
        assert main(["run", str(recipe), *SMOKE, "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith(f"target: zoo://talk-7m, because {REASON}")


def test_the_figures_record_it_too(recipe, tmp_path, capsys):
    assert main(["run", str(recipe), *SMOKE, "--json", "--out", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["target"]["model"] == "zoo://talk-7m" and figures["target"]["reason"].startswith(REASON)


def test_a_target_that_is_here_is_named_as_well(recipe, tmp_path, capsys):
    assert main(["run", str(recipe), *SMOKE, "target.model=zoo://talk-7m", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "target: zoo://talk-7m"
    assert json.loads((tmp_path / "run.json").read_text())["target"] == {"model": "zoo://talk-7m"}


@pytest.mark.parametrize(
    "command",
    [
        ["run", "target.fallback=null"],
        ["bench", "--limit", "1"],
        ["train"],
        ["certify", "run.prompts=[Hello]"],
        ["show", "--prompt", "Hello"],
    ],
    ids=lambda command: command[0],
)
def test_every_other_command_refuses_in_one_line(recipe, command, capsys):
    name, *arguments = command
    assert main([name, str(recipe), "run.prompts=[Hello]", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith(REASON) and printed.err.count("\n") == 1


def test_a_certificate_without_the_model_needs_no_model(recipe):
    assert main(["certify", str(recipe), "drafter.use=lookup", "tree=null", "--exact-only", "--json"]) == 0
