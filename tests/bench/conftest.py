import json

import pytest

PROMPTS = [
    ("talk", ["hello there", "and then?"]),
    ("code", ["a b a b a b"]),
    ("talk", ["good morning", "why?"]),
    ("code", ["what is it?"]),
]


@pytest.fixture
def here(model_folder, tmp_path, monkeypatch):
    """A working folder with two recipes around one target and a prompt set."""
    monkeypatch.chdir(make_folder(tmp_path, model_folder))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def make_folder(folder, model):
    write_recipe(folder / "lookup.yaml", model, "drafter: {use: lookup}")
    tree = "drafter: {use: falcon, block: 2}\ntree: {use: dynamic, depth: 4, width: 3, nodes: 8}"
    write_recipe(folder / "falcon.yaml", model, tree)
    lines = [json.dumps({"turns": turns, "category": task}) for task, turns in PROMPTS]
    (folder / "talks.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def write_recipe(path, model, parts, verifier="match"):
    path.write_text(
        f"target: {{use: hf, model: '{model}', dtype: float64}}\n{parts}\nverifier: {{use: {verifier}}}\n"
        "sampling: {temperature: 0.0, max_new_tokens: 8}\n"
    )
