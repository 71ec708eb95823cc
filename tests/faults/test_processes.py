"""Long commands killed at random moments, out of room, and started twice: each in processes of its own."""

import json
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

KILLS = 6
RECIPE = """\
target: {{use: hf, model: '{model}', dtype: float32}}
drafter: {{use: falcon, block: 2}}
tree: {{use: dynamic, depth: 2, width: 2, nodes: 5}}
verifier: match
sampling: {{temperature: 1.0, max_new_tokens: 30}}
run: {{seed: 1, batch: 2}}
loss: [{{use: distillation}}]
train: {{data: [texts.jsonl], rollout: {{use: glancing}}, steps: 60, batch: 2, length: 24, save_every: 3}}
"""


class Command:
    """A long command, and what it comes to."""

    def __init__(self, words, out, read):
        self.words, self.out, self.read = words, out, read

    def start(self, out, limit=None):
        """The command in a process that may write files of `limit` bytes."""

        def bound():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        return subprocess.Popen(
            [sys.executable, "-m", "specframe", *self.words, *self.out(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            preexec_fn=None if limit is None else bound,
        )

    def run(self, out, limit=None):
        """Its exit status and what it prints on standard error."""
        process = self.start(out, limit)
        _, output = process.communicate(timeout=600)
        return process.returncode, output


def read_bench(out):
    runs = json.loads((out / "results.json").read_text())["runs"]
    return sorted((run["contestant"], run["prompt"], run["repeat"], run["tokens"]) for run in runs)


def read_answers(out):
    lines = [json.loads(line) for line in (out / "answers.jsonl").read_text().splitlines()]
    assert len(lines) == len({line["line"] for line in lines})
    return sorted(map(json.dumps, lines))


def read_training(out):
    files = ("model.safetensors", "last/model.safetensors")
    return [[(name, value.tolist()) for name, value in sorted(load_file(out / file).items())] for file in files]


COMMANDS = {
    "bench": Command(
        ["bench", "recipe.yaml", "plain", "--data", "texts.jsonl", "--limit", "10", "--repeats", "4"],
        lambda out: ["--out", out],
        read_bench,
    ),
    "distill-data": Command(
        ["distill-data", "recipe.yaml", "--prompts", "texts.jsonl", "run.chat=false"],
        lambda out: ["--out", out],
        read_answers,
    ),
    "train": Command(["train", "recipe.yaml"], lambda out: [f"train.out={out}"], read_training),
}


@pytest.fixture(scope="module")
def work(model_folder, tmp_path_factory):
    """A folder with a recipe, texts, and what each command comes to when nothing is in its way."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "recipe.yaml").write_text(RECIPE.format(model=model_folder))
    words = random.Random(0)
    lines = [{"text": " ".join(words.choices(["hello", "there", "good", "day", "to", "you"], k=8))} for _ in range(40)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def command(request, work, monkeypatch):
    """A command that has run to its end once, in `whole-NAME`, and how long that took."""
    monkeypatch.chdir(work)
    found, whole = COMMANDS[request.param], Path(f"whole-{request.param}")
    if request.param not in LENGTHS:
        began = time.perf_counter()
        assert found.run(whole.name)[0] == 0
        LENGTHS[request.param] = time.perf_counter() - began
    out = Path(f"out-{request.node.name.translate(str.maketrans('[]', '--'))}")
    return found, out, found.read(whole), LENGTHS[request.param]


LENGTHS: dict[str, float] = {}
every_command = pytest.mark.parametrize("command", COMMANDS, indirect=True)


@every_command
def test_a_command_killed_at_random_moments_ends_as_if_it_never_was(command):
    command, out, wanted, length = command
    moments = random.Random(1)
    for _ in range(KILLS):
        process = command.start(out.name)
        time.sleep(moments.uniform(0.3, 1.0) * length)
        process.kill()
        process.communicate()
    status, output = command.run(out.name)
    assert status == 0, output
    assert command.read(out) == wanted
    assert not list(out.rglob("*.part"))


@every_command
@pytest.mark.parametrize("limit", [200, 4000])
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(command, limit):
    command, out, wanted, _ = command
    status, output = command.run(out.name, limit)
    assert status == 2 and "Traceback" not in output and "File too large" in output.splitlines()[-1], output
    status, output = command.run(out.name)
    assert status == 0, output
    assert command.read(out) == wanted


@every_command
def test_of_two_writers_one_is_refused_and_nothing_is_written_twice(command):
    command, out, wanted, _ = command
    both = [command.start(out.name) for _ in range(2)]
    ends = [(process.communicate(timeout=600)[1], process.returncode) for process in both]
    (refused, status), (_, done) = sorted(ends, key=lambda end: -end[1])
    assert (status, done) == (2, 0) and f"another process is writing to {out}; wait for it to end" in refused
    assert command.read(out) == wanted
