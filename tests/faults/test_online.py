"""A drafter that learns, in processes that are killed."""

import json
import os
import random
import subprocess
import sys
import time

import pytest
from safetensors import safe_open

from specframe.components.drafters.model import ModelDrafter
from specframe.training import state

pytestmark = pytest.mark.slow

RECIPE = """\
target: {{use: hf, model: '{model}', dtype: float32}}
drafter: {{use: online, drafter: {{use: model, model: '{model}'}}, every: 1, held: 0, lr: 1.0e-3, out: learnt}}
tree: {{use: chain, depth: 2}}
verifier: match
sampling: {{temperature: 1.0, max_new_tokens: 20}}
run: {{repeats: 0, chat: false, prompts: {prompts}}}
"""


def test_a_process_that_is_killed_loses_one_update_at_most(model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prompts = [f"hello number {number}" for number in range(60)]
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(model=model_folder, prompts=json.dumps(prompts)))
    moments, done = random.Random(0), 0
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-m", "specframe", "run", "recipe.yaml"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        recorded = updates(tmp_path / "learnt")
        while process.poll() is None and updates(tmp_path / "learnt") < recorded + 3:
            time.sleep(0.02)
        time.sleep(moments.uniform(0, 0.3))
        process.kill()
        error = process.communicate()[1].decode()
        with safe_open(tmp_path / "learnt" / state.FILE, framework="pt") as file:
            saved = json.loads(file.metadata()["ledger"])["step"]
        assert saved >= done + 3, error
        assert saved - updates(tmp_path / "learnt") in (0, 1)
        assert ModelDrafter(weights=str(tmp_path / "learnt")).vocab_size > 0
        done = saved


def updates(folder):
    """How many updates are on record."""
    path = folder / "online.json"
    return json.loads(path.read_text())["updates"] if path.exists() else 0
