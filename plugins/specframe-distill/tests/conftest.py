"""Prompts, and a recipe of a small random model that answers them; one thread, since the tensors are tiny."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

PROMPTS = [
    {"turns": ["hello there", "and then?"]},
    {"prompt": "good morning to you"},
    {"question": "why?"},
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "old"}]},
    {"prompt": "what is it"},
    {"prompt": "a b c"},
]


@pytest.fixture
def here(model_folder, tmp_path, monkeypatch):
    """A working folder with a recipe and some prompts."""
    (tmp_path / "recipe.yaml").write_text(
        f"target: {{use: hf, model: '{model_folder}', dtype: float64}}\n"
        "drafter: {use: falcon, block: 2}\n"
        "tree: {use: dynamic, depth: 2, width: 2, nodes: 5}\n"
        "verifier: {use: match}\n"
        "sampling: {max_new_tokens: 12}\n"
        "run: {chat: true, seed: 1}\n"
    )
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, PROMPTS)) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def answers(here):
    """The contents of a folder's answers.jsonl, by the line of the prompt."""

    def read(folder="out"):
        lines = (here / folder / "answers.jsonl").read_text().splitlines()
        return {entry["line"]: entry for entry in map(json.loads, lines)}

    return read
