"""`specframe store build`, and a run that copies from the store."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest

from specframe.cli.main import main


@pytest.fixture
def retrieving(recipe, tmp_path, monkeypatch):
    """A recipe whose drafter reads the store `texts`, and files to build it of."""
    monkeypatch.chdir(tmp_path)
    lines = recipe.read_text().splitlines()
    lines[1] = "drafter: {use: retrieval, store: {use: corpus, path: texts}, remember: true}"
    recipe.write_text("\n".join(lines))
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "one.txt").write_text("hello there, good morning!")
    (tmp_path / "files" / "two.jsonl").write_text(
        json.dumps({"text": "good evening"}) + "\n" + json.dumps({"messages": [{"role": "user", "content": "hello"}]})
    )
    (tmp_path / "files" / "image.png").write_bytes(b"\x89PNG\xff\xfe")
    (tmp_path / "files" / ".hidden").write_text("zzz")
    return recipe


def test_a_store_is_built_and_read_and_remembers(retrieving, tmp_path, capsys):
    assert main(["store", "build", "files", "--recipe", str(retrieving)]) == 0
    assert capsys.readouterr().out == "texts: 43 tokens of 3 texts\n"
    assert main(["store", "build", "files", "--recipe", str(retrieving), "--out", "other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": "other", "tokens": 43, "texts": 3}
    assert main(["run", str(retrieving), "--json"]) == 0
    json.loads(capsys.readouterr().out.splitlines()[-1])
    stored = json.loads((tmp_path / "texts" / "store.json").read_text())["segments"]
    assert sum(stored.values()) > 2 * 46, "finished texts have joined it"


def test_another_folder_and_a_value_that_replaces_the_recipes(retrieving, tmp_path, capsys):
    command = ["store", "build", "files/one.txt", "--recipe", str(retrieving), "--out", "other", "run.seed=2"]
    assert main(command) == 0
    assert capsys.readouterr().out == "other: 26 tokens of 1 text\n"
    assert (tmp_path / "other" / "store.json").is_file()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["nowhere"], "there is no file or folder nowhere"),
        (["files/image.png"], "files/image.png is not UTF-8 text"),
        (["bad.jsonl"], 'bad.jsonl:1: a record must be {"text": "..."} or {"messages": [{"content": "..."}]}'),
        (["empty"], "there is no text to store"),
    ],
)
def test_what_cannot_be_stored_is_one_line(retrieving, tmp_path, capsys, files, message):
    (tmp_path / "bad.jsonl").write_text('{"words": 1}\n')
    (tmp_path / "empty").mkdir()
    assert main(["store", "build", *files, "--recipe", str(retrieving)]) == 2
    assert capsys.readouterr().err == message + "\n"


def test_a_run_without_its_store_is_one_line(retrieving, capsys):
    assert main(["run", str(retrieving)]) == 2
    assert capsys.readouterr().err == "there is no store in texts; make one with specframe store build\n"


def test_a_recipe_without_a_store_needs_a_folder(recipe, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text("hello")
    assert main(["store", "build", "one.txt", "--recipe", str(recipe)]) == 2
    assert "names no store with a path; give --out FOLDER" in capsys.readouterr().err


def rewrite(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "store.json").write_text("{"), "is broken: "),
        (lambda f: next(f.glob("*.order.npy")).write_bytes(b"torn"), "is broken: "),
        (lambda f: rewrite(f / "store.json", segments={}), "the store texts is empty; make it again"),
        (lambda f: rewrite(f / "store.json", tokenizer="another"), "the store texts is of another tokenizer than the"),
    ],
    ids=["index", "array", "empty", "tokenizer"],
)
def test_a_store_that_cannot_be_used_is_one_line(retrieving, tmp_path, capsys, damage, message):
    assert main(["store", "build", "files", "--recipe", str(retrieving)]) == 0
    damage(tmp_path / "texts")
    capsys.readouterr()
    assert main(["run", str(retrieving)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_full_disk_stops_remembering_not_the_run(retrieving, tmp_path, capsys, caplog, monkeypatch):
    assert main(["store", "build", "files", "--recipe", str(retrieving)]) == 0
    capsys.readouterr()

    def full(path, array):
        raise OSError(errno.ENOSPC, "No space left on device")

    before = {path.name: path.read_bytes() for path in (tmp_path / "texts").iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        assert main(["run", str(retrieving), "--json", "run.repeats=2"]) == 0
    found = capsys.readouterr().out
    (warning,) = caplog.records
    assert "finished texts are remembered no more: InputError: the store texts cannot be written" in warning.message
    assert warning.message.endswith("No space left on device; it is as it was before")
    assert {path.name: path.read_bytes() for path in (tmp_path / "texts").iterdir()} == before
    assert main(["run", str(retrieving), "--json", "drafter.remember=false", "run.repeats=2"]) == 0
    assert outputs(capsys.readouterr().out) == outputs(found) != []


def outputs(lines: str) -> list[str]:
    """The texts that a run printed as JSON."""
    return [record["text"] for record in map(json.loads, lines.splitlines()) if "text" in record]
