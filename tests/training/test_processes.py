"""Processes that train together: they end with one drafter, and any number of them resumes the run."""

import json
import os
import random
import shutil
import subprocess
import sys
from itertools import count
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from specframe.components.losses.distillation import Distillation
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.training.settings import TrainSettings
from specframe.training.train import train

PROGRAM = """
import json, sys

sys.path.insert(0, sys.argv[1])
from test_processes import run_phases

run_phases(json.loads(sys.argv[2]))
"""
STEPS, SAVED = 6, 3
LAUNCHES = count()
HERE = str(Path(__file__).parent)


class Killed(Exception):
    """Stands for a kill."""


class Noting:
    """A rollout with noise that notes the texts it gets, and ends the process at its call number `last`."""

    def __init__(self, file: Path, noise: float, last: int) -> None:
        self.inner = TeacherForced(noise=noise)
        self._file, self._last, self._calls = file, last, 0  # no options of the run

    def __call__(self, drafter, teacher, progress):
        if self._calls == self._last:
            raise Killed
        self._calls += 1
        with self._file.open("a") as file:
            file.write(json.dumps(teacher.tokens.tolist()) + "\n")
        return self.inner(drafter, teacher, progress)


def take_part(data, out, batch=2, noise=0.1, last=-1, state=None):
    """Trains on texts of one length as one of the launched processes; weights and texts are saved by rank.

    `state` is the folder of a run that this one goes on from.
    """
    from conftest import TinyDrafter, make_tiny_target, make_tokenizer

    rank, out = os.environ["RANK"], Path(out)
    target = make_tiny_target(vocab=257)
    torch.manual_seed(int(rank))
    drafter = TinyDrafter(target, block=1)
    out.mkdir(exist_ok=True)
    if state is not None:
        shutil.copy(Path(state) / "state.safetensors", out)
    rollout = Noting(out / f"texts-{rank}.jsonl", noise, last)
    settings = TrainSettings(
        data=[data],
        rollout=rollout,
        out=out,
        steps=STEPS,
        batch=batch,
        length=40,
        lr=1e-3,
        save_every=SAVED,
        validation=0.0,
    )
    losses = [(Distillation(), 1.0, "distillation")]
    try:
        train(target, drafter, losses, settings, tokenizer=make_tokenizer())
    except Killed:
        return
    torch.save(drafter.module.state_dict(), out / f"rank-{rank}.pt")


def run_phases(phases):
    """Forks the processes of each phase, as `accelerate launch` starts them: torch is imported once, and not used here.

    A phase is a list of runs, each a number of processes and the arguments of `take_part`.
    """
    for phase in phases:
        jobs = []
        for processes, arguments in phase:
            port = 20000 + (8 * os.getpid() + next(LAUNCHES)) % 20000
            for rank in range(processes):
                job = get_context("fork").Process(target=start, args=(port, rank, processes, arguments))
                job.start()
                jobs.append(job)
        for job in jobs:
            job.join()
        if any(job.exitcode for job in jobs):
            sys.exit("a process failed")


def start(port, rank, count, arguments):
    """Takes part as one of `count` processes that find each other at the port."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    torch.set_num_threads(1)
    take_part(**arguments)


def launch(*phases):
    """Runs the phases in a process of its own, in which no thread of torch is running."""
    command = [sys.executable, "-c", PROGRAM, HERE, json.dumps(phases, default=str)]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def data(tmp_path):
    draw = random.Random(0)
    lines = [{"text": "".join(draw.choice("abcde fgh") for _ in range(39))} for _ in range(20)]
    (tmp_path / "even.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return str(tmp_path / "even.jsonl")


def trained(folder, rank):
    return torch.load(folder / f"rank-{rank}.pt")


def require_equal(ours, theirs, tolerance):
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=tolerance)


@pytest.mark.full
def test_two_processes_train_one_drafter(data, tmp_path):
    """Both end with the same weights, those of one process with a batch twice as large."""
    two, one = ({"data": data, "out": tmp_path / name, "noise": 0.0} for name in ("two", "one"))
    launch([(2, {**two, "batch": 3}), (1, {**one, "batch": 6})])
    require_equal(trained(tmp_path / "two", 0), trained(tmp_path / "two", 1), 0)
    require_equal(trained(tmp_path / "two", 0), trained(tmp_path / "one", 0), 1e-5)


@pytest.mark.full
def test_another_number_of_processes_resumes(data, tmp_path):
    """A run of two, killed after its state was saved, goes on in two and in one: equal texts, noise and weights."""
    whole, again, alone = (tmp_path / name for name in ("whole", "again", "alone"))
    launch(
        [(2, {"data": data, "out": whole}), (2, {"data": data, "out": again, "last": SAVED})],
        [(1, {"data": data, "out": alone, "state": again})],
        [(2, {"data": data, "out": again})],
    )
    texts = batches(whole, "01")
    assert len(texts) == 2 * STEPS and texts[0] != texts[1]
    assert batches(again, "01") == texts
    assert batches(alone, "0") == texts[2 * SAVED :]
    for rank in (0, 1):
        require_equal(trained(again, rank), trained(whole, rank), 0)
    require_equal(trained(alone, 0), trained(whole, 0), 1e-6)


def batches(folder, ranks):
    """The texts of every batch, in the order of the run."""
    noted = [(folder / f"texts-{rank}.jsonl").read_text().splitlines() for rank in ranks]
    return [line for step in zip(*noted, strict=True) for line in step]
