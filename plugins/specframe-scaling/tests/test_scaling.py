"""`specframe scaling` from a recipe to laws, killed and resumed, and what it refuses."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import planted
import pytest

from specframe.cli.main import main
from specframe_scaling.grid import SweepGrid, Trunk
from specframe_scaling.points import Results
from specframe_scaling.training import Sweep

SIZES = ["--tokens", "400,1k,4k", "--layers", "1,2", "--width", "8", "--batch", "1,2,3"]


@pytest.fixture
def recipe(model_folder, tmp_path):
    """EAGLE on a small random model, of one character a token."""
    dice = random.Random(0)
    lines = [json.dumps({"text": "".join(dice.choice("abc ") for _ in range(40))}) for _ in range(60)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"target: {{use: hf, model: '{model_folder}', dtype: float32}}\n"
        "drafter: {use: eagle}\n"
        "tree: {use: fixed, widths: [2, 1]}\n"
        "verifier: {use: match}\n"
        "sampling: {temperature: 0.0, max_new_tokens: 12}\n"
        "run: {prompts: [hello there, good morning], seed: 1, repeats: 1}\n"
        "loss: [{use: cross-entropy, weight: 1.0}]\n"
        "train:\n"
        f"  data: ['{tmp_path}/texts.jsonl']\n"
        "  rollout: {use: teacher-forced}\n"
        "  batch: 2\n  length: 64\n  warmup: 1\n  lr: 1.0e-3\n  save_every: 3\n"
    )
    return path


@pytest.fixture
def planted_file(tmp_path):
    path = tmp_path / "results.json"
    planted.results(7).write(path)
    return path


def swept(recipe: Path, out: Path, *more: str) -> int:
    return main(["scaling", str(recipe), "train.warmup=1", *SIZES, "--out", str(out), *more])


@pytest.mark.full
def test_a_sweep_trains_measures_and_fits(recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("psutil.cpu_percent", lambda _: 90.0)  # costs of a busy machine, which are timed again later
    out = tmp_path / "sweep"
    assert swept(recipe, out, "--train-only", "--jobs", "2") == 0
    assert capsys.readouterr().out == f"6 drafters in {out}\n" and not (out / "results.json").exists()
    assert swept(recipe, out, "--plan", "tokens=10k") == 0
    text = capsys.readouterr().out
    assert "logit(alpha_1) =" in text and "1 layer of width 8" in text
    results = Results.read(out / "results.json")
    assert sorted({point.size for point in results.points}) == [(1, 8), (2, 8)]
    assert [point.tokens for point in results.points if point.layers == 1] == pytest.approx([400, 1000, 4000], rel=0.2)
    assert len(results.speeds) == 6 and all(speed.nodes == [2.0, 2.0] for speed in results.speeds)
    assert all(len(point.cycles) == 2 for point in results.points)
    before = (out / "results.json").read_bytes()
    monkeypatch.setattr("psutil.cpu_percent", lambda _: 0.0)
    assert swept(recipe, out) == 0
    assert (out / "results.json").read_bytes() == before, "nothing is trained or measured twice"


@pytest.mark.full
def test_a_killed_sweep_goes_on_to_the_same_drafters_and_points(recipe, tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    grid = SweepGrid((400, 1000, 4000), (2,), (8,))
    trunk = Trunk(2, 8, 0)
    sweeps = [Sweep(str(recipe), ["train.warmup=1"], grid, out) for out in (whole, killed)]
    assert list(sweeps[0].train()) == [trunk]
    (killed / trunk.name).mkdir(parents=True)
    process = subprocess.Popen(sweeps[1].command(trunk), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (killed / trunk.name / "tokens-400" / "state.safetensors").exists() and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not sweeps[1].is_done(trunk)
    assert list(sweeps[1].train()) == [trunk] and list(sweeps[1].train()) == []
    for tokens, folder in grid.folders(trunk, whole).items():
        other = grid.folders(trunk, killed)[tokens]
        assert (folder / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    for out in (whole, killed):
        assert main(["scaling", str(recipe), "train.warmup=1", "--tokens", "400,1k,4k", "--layers", "2", "--width", "8",
                     "--batch", "", "--out", str(out)]) == 0  # fmt: skip
    points = [Results.read(out / "results.json").points for out in (whole, killed)]
    assert [replace(p, seconds=0.0) for p in points[0]] == [replace(p, seconds=0.0) for p in points[1]]


def test_a_file_is_fitted_and_planned_without_training(recipe, planted_file, tmp_path, capsys):
    command = ["scaling", str(recipe), "--fit", str(planted_file), "--budget", "20min", "--plan", "tokens=50M"]
    assert main(command) == 0
    text = capsys.readouterr().out
    for words in (
        "logit(alpha_1) =",
        "expected tau",
        "at batch 1",
        "OUTSIDE",
        "beyond batch",
        "log2(batch) up to batch",
    ):
        assert words in text
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["drafter={use: lookup}", "tree=null"],
            "the drafter lookup has no weights, so there is nothing to train more or less",
        ),
        (["drafter={use: chimera}", "--layers", "2"], "the drafter chimera has no option layers: leave --layers out"),
        (["train=null"], "no train section"),
        (["--tokens", "5 apples"], "'5 apples' is no number of tokens"),
        (["--tokens", "50k,5M"], "--tokens has 2 counts over a factor of 100.0; a law needs three"),
        (["--tokens", "50k,100k,200k"], "3 counts over a factor of 4.0"),
        (["--layers", "one"], "'one' is no list of numbers"),
        (["--budget", "soon"], "'soon' is not a time"),
        (["--plan", "50M"], "--plan 50M: give the tokens"),
        (["--fit", "nowhere.json"], "cannot read nowhere.json"),
    ],
)
def test_what_cannot_be_swept_is_one_line(recipe, capsys, more, message):
    assert main(["scaling", str(recipe), *more]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda points: [*points[:-1], replace(points[-1], target="another")],
            "different targets, another and planted",
        ),
        (lambda points: [*points[:-1], replace(points[-1], data="others")], "trained on different texts"),
        (lambda points: [*points[:-1], replace(points[-1], cycles=[1.0])], "measured on different prompts"),
        (lambda points: [p for p in points if p.tokens in planted.TOKENS[::5]], "2 token counts; a law needs three"),
        (lambda points: [p for p in points if p.tokens in planted.TOKENS[:3]], "span a factor of 6.0; a law needs ten"),
    ],
)
def test_points_that_no_law_can_have_are_refused(recipe, planted_file, capsys, change, message):
    found = planted.results(7)
    Results(change(found.points), found.speeds).write(planted_file)
    assert main(["scaling", str(recipe), "--fit", str(planted_file)]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1


def test_a_budget_below_one_point_and_other_files_are_refused(recipe, planted_file, capsys):
    assert main(["scaling", str(recipe), "--fit", str(planted_file), "--budget", "2s"]) == 2
    assert "below one point" in capsys.readouterr().err
    planted_file.write_text("[]")
    assert main(["scaling", str(recipe), "--fit", str(planted_file)]) == 2
    assert "holds no results of `specframe scaling`" in capsys.readouterr().err


@pytest.mark.full
def test_a_training_that_fails_shows_why(recipe, tmp_path, capsys):
    (tmp_path / "texts.jsonl").write_text("no JSON")
    assert swept(recipe, tmp_path / "sweep", "--train-only") != 0
    error = capsys.readouterr().err
    assert "the training of L1-W8-S0 failed" in error and "texts.jsonl:1" in error
