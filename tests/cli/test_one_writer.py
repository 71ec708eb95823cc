"""Two processes on one folder: the second is refused before it loads or writes anything."""

import json
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from specframe.cli.main import main
from specframe.decoding.pipeline import Pipeline
from specframe.files.folders import writing

TRAIN = "train: {data: [texts.jsonl], rollout: {use: teacher-forced}, out: out}\nloss: [{use: distillation}]\n"
COMMANDS = {
    "bench": ["bench", "recipe.yaml", "plain", "--data", "texts.jsonl", "--out", "out"],
    "train": ["train", "recipe.yaml"],
    "distill-data": ["distill-data", "recipe.yaml", "--prompts", "texts.jsonl", "--out", "out"],
}


@contextmanager
def held_elsewhere(folder):
    """Another process's lock: to the operating system, another thread's is another process's."""
    ready, done = Event(), Event()

    def hold():
        with writing(folder):
            ready.set()
            done.wait()

    thread = Thread(target=hold)
    thread.start()
    assert ready.wait(20)
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_second_writer_is_refused_before_models_load(command, recipe, tmp_path, monkeypatch, capsys):
    recipe.write_text(recipe.read_text() + TRAIN)
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "hello there"}) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Pipeline, "build", lambda *_: pytest.fail("the model was loaded first"))
    with held_elsewhere(tmp_path / "out"):
        assert main(COMMANDS[command]) == 2
    assert capsys.readouterr().err.startswith("another process is writing to out; wait for it to end, or give another ")
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]
