"""Where results go is checked before the work that they come from."""

import pytest

from specframe.cli.main import main
from specframe.decoding.pipeline import Pipeline

TRAIN = "train: {data: [texts.jsonl], rollout: {use: teacher-forced}, out: file/out}\nloss: [{use: distillation}]\n"


@pytest.fixture
def here(recipe, tmp_path, monkeypatch):
    recipe.write_text(recipe.read_text() + TRAIN)
    (tmp_path / "texts.jsonl").write_text('{"text": "hello there"}\n')
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["run", "recipe.yaml", "--out", "file/out"], "give another --out"),
        (["show", "recipe.yaml", "--html", "file/page.html"], "give --html another place"),
        (["profile", "recipe.yaml", "--out", "file/profile.json"], "give --out another place"),
        (["bench", "recipe.yaml", "plain", "--data", "texts.jsonl", "--out", "file/out"], "give another --out"),
        (["distill-data", "recipe.yaml", "--prompts", "texts.jsonl", "--out", "file/out"], "give another --out"),
        (["train", "recipe.yaml"], "give another train.out"),
    ],
)
def test_a_place_that_cannot_be_written_to_is_refused_before_models_load(here, command, words, monkeypatch, capsys):
    monkeypatch.setattr(Pipeline, "build", lambda *_, **__: pytest.fail("the model was loaded first"))
    monkeypatch.setattr("specframe.components.targets.loading.load", lambda *_, **__: pytest.fail("a model was loaded"))
    assert main(command) == 2
    output = capsys.readouterr().err
    assert output.startswith("file/") and output.endswith(f"{words}\n") and len(output.splitlines()) == 1


def test_the_home_folder_may_stand_in_a_place(here, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(here))
    assert main(["run", "recipe.yaml", "run.repeats=0", "--out=~/results"]) == 0
    assert (here / "results" / "run.json").exists() and not (here / "~").exists()
