"""A drafter that learns, in processes that are killed."""

import json
import os
import random
import resource
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
    """Number of updates on record."""
    path = folder / "online.json"
    return json.loads(path.read_text())["updates"] if path.exists() else 0


def test_a_full_disk_stops_learning_not_decoding(model_folder, tmp_path, monkeypatch):
    """The weights, 60 KB and more, cannot be written to a file of 20 KB at most; the texts stay what they are."""
    monkeypatch.chdir(tmp_path)
    prompts = [f"hello number {number}" for number in range(6)]
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(model=model_folder, prompts=json.dumps(prompts)))

    def decode(limit=None, *changes):
        def bound():
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        return subprocess.run(
            [sys.executable, "-m", "specframe", "run", "recipe.yaml", *changes],
            capture_output=True,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            preexec_fn=None if limit is None else bound,
            check=False,
        )

    full = decode(20_000, "drafter.out=full")
    assert full.returncode == 0, full.stderr
    assert "the drafter learns no more" in full.stderr and full.stderr.count("learns no more") == 1
    free = decode(None, "drafter.out=free")
    assert free.returncode == 0 and "learns no more" not in free.stderr
    assert updates(tmp_path / "free") == len(prompts) and updates(tmp_path / "full") == 0
    texts = [each.stdout.split("tokens/s")[0] for each in (full, free)]
    assert texts[0] == texts[1] and len(texts[0]) > 200
