import json
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import specframe
from specframe.cli.main import main

TRAIN = """\
loss:
  - {{use: feature-regression, weight: 1.0}}
  - {{use: distillation, weight: 0.1}}
train:
  data: ['{data}']
  rollout: {{use: glancing}}
  out: '{out}'
  steps: {steps}
  batch: 2
  length: 24
  lr: 1.0e-2
  validation: 0.2
  save_every: 5
"""


@pytest.fixture
def training(recipe, tmp_path):
    """A recipe that trains, on a few short texts."""
    data = tmp_path / "data.jsonl"
    chats = [[{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day to you"}]] * 4
    lines = [{"text": "the quick brown fox jumps over the lazy dog"}] * 6 + [{"messages": chat} for chat in chats]
    data.write_text("\n".join(map(json.dumps, lines)))

    def write(steps=6):
        text = recipe.read_text().split("loss:")[0]
        text = text.replace("dtype: float64", "dtype: float32")
        recipe.write_text(text + TRAIN.format(data=data, out=tmp_path / "out", steps=steps))
        return recipe

    return write


def test_what_train_writes_run_loads(training, tmp_path, capsys):
    recipe = training()
    assert main(["train", str(recipe)]) == 0
    output = capsys.readouterr().out
    assert f"drafter.weights={tmp_path / 'out'}" in output and "6 steps" in output
    assert main(["train", str(recipe), "--json"]) == 0, "done already"
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["steps"] == 6 and found["override"] == f"drafter.weights={tmp_path / 'out'}"
    fresh = specframe.load(recipe).parts.drafter.module.state_dict()
    trained = specframe.load(recipe, overrides=[f"drafter.weights={tmp_path / 'out'}"]).parts.drafter.module
    assert any(not torch.equal(fresh[name], value) for name, value in trained.state_dict().items())
    assert main(["run", str(recipe), f"drafter.weights={tmp_path / 'out'}", "run.repeats=0"]) == 0


def test_ctrl_c_keeps_the_state_and_prints_how_to_go_on(training, tmp_path, capsys):
    recipe = training(steps=100_000)
    ended = threading.Event()
    interrupt = threading.Thread(target=interrupt_after, args=(tmp_path / "out" / "state.safetensors", ended))
    interrupt.start()
    try:
        assert main(["train", str(recipe)]) == 130
    finally:
        ended.set()
        interrupt.join()
    output = capsys.readouterr().err
    assert "run the same command again to go on" in output and "Traceback" not in output


def interrupt_after(file, ended):
    """Sends this process what Ctrl-C does as soon as the file exists, unless the command has ended."""
    while not file.exists():
        if ended.wait(0.05):
            return
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.full
def test_processes_that_torchrun_launched_train_together_on_a_cpu(training, tmp_path):
    """torchrun sets nothing for CPUs, as `accelerate launch --cpu` does: the command must find out."""
    network = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20000 + os.getpid() % 20000), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "specframe", "train", str(training()), "train.batch=1"]
    jobs = []
    for rank in ("0", "1"):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        environment = os.environ | network | place
        jobs.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    ends = [(job.communicate(timeout=200)[1], job.returncode) for job in jobs]  # both are awaited, whatever came
    assert all(code == 0 for _, code in ends), "\n".join(errors for errors, _ in ends)
    assert json.loads((tmp_path / "out" / "train.json").read_text())["processes"] == 2


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train=null", "no train section"),
        ("train.data=[/nowhere/x.jsonl]", "/nowhere/x.jsonl"),
        ("train.lenght=3", "did you mean 'length'"),
        ("train.length=1000", "context of 128"),
        ("loss=null", "no loss"),
        ("drafter.use=lookup", "tree"),
        ("train.out=/proc/nowhere", "cannot be written"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_status_2(training, override, words, capsys):
    assert main(["train", str(training()), override]) == 2
    output = capsys.readouterr().err.strip()
    assert words in output and "Traceback" not in output and len(output.splitlines()) == 1


STAGES = "train.stages=[{steps: 3, lr: 0.02}, {steps: 4, weight_decay: 0.1}]"


def weights(folder):
    return load_file(folder / "model.safetensors")


def test_stages_are_trainings_one_after_the_other(training, tmp_path, capsys):
    """Each begins with the weights of the one before, and the same command does nothing twice."""
    recipe = str(training())
    by_hand = [tmp_path / "first", tmp_path / "second"]
    assert main(["train", recipe, "train.steps=3", "train.lr=0.02", f"train.out={by_hand[0]}"]) == 0
    more = [f"drafter.weights={by_hand[0]}", "train.steps=4", "train.weight_decay=0.1", f"train.out={by_hand[1]}"]
    assert main(["train", recipe, "--warm-start", *more]) == 0
    for _ in range(2):
        capsys.readouterr()
        assert main(["train", recipe, STAGES]) == 0
        assert f"drafter.weights={tmp_path / 'out'}" in capsys.readouterr().out
        for folder, alone in zip((tmp_path / "out" / "stage-1", tmp_path / "out"), by_hand, strict=True):
            assert_close(weights(folder), weights(alone), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ("[{steps: 3}, {stepps: 4}]", "stepps"),
        ("[{steps: 3}, {steps: 0}]", "train.steps is 0"),
        ("[{steps: 3, out: x}]", "a stage of train.stages has no out"),
        ("[]", "train.stages is empty"),
    ],
)
def test_stages_that_cannot_be_are_refused_before_the_first(stages, words, training, tmp_path, capsys):
    assert main(["train", str(training()), f"train.stages={stages}"]) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_minutes_are_steps_by_the_time_of_the_first(training, tmp_path, monkeypatch):
    """The trial leaves no trace, and a resumed run keeps its number of steps."""
    clock = iter(range(0, 10_000, 4))
    monkeypatch.setattr("specframe.training.trainer.Trainer.settled", lambda self: next(clock))
    recipe = str(training())
    timed = ["train.steps=null", "train.minutes=0.1"]  # 3 steps in 4 s: 6 s are 4 or 5 steps
    assert main(["train", recipe, *timed]) == 0
    steps = json.loads((tmp_path / "out" / "train.json").read_text())["steps"]
    assert steps == round(6 * 3 / 4)
    monkeypatch.setattr("specframe.training.trainer.Trainer.settled", None)
    assert main(["train", recipe, *timed]) == 0, "done already"
    assert main(["train", recipe, f"train.steps={steps}", f"train.out={tmp_path / 'alone'}"]) == 0
    assert_close(weights(tmp_path / "out"), weights(tmp_path / "alone"), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["train.minutes=0"], "train.minutes is 0"),
        (["train.minutes=1"], "both an end"),
    ],
)
def test_minutes_that_cannot_be(settings, words, training, capsys):
    assert main(["train", str(training()), *settings]) == 2
    assert words in capsys.readouterr().err


def test_samples_are_shown_with_what_is_learnt(training, tmp_path, capsys):
    assert main(["train", str(training()), "--show", "7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{tmp_path / 'data.jsonl'}:7" in lines[-3]
    assert lines[-2].startswith("given ") and "hello" in lines[-2] and "good day" not in lines[-2]
    assert lines[-1].startswith("learnt") and "good day to you" in lines[-1]
    assert not (tmp_path / "out").exists()
