"""A server around a small random model: one character a token, float64, so that no text hangs on rounding."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from serving import Serving, long_model, make_pipeline

from tests.small_model import make_tokenizer

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pipeline():
    return make_pipeline()


@pytest.fixture
def serving(pipeline):
    with Serving(pipeline) as running:
        yield running


@pytest.fixture
def recipe(tmp_path):
    long_model().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    path = tmp_path / "small.yaml"
    path.write_text(
        f"target: {{use: hf, model: '{tmp_path / 'model'}', dtype: float64}}\n"
        "drafter: {use: lookup}\nverifier: {use: match}\n"
        "sampling: {temperature: 1.0, max_new_tokens: 12}\n"
    )
    return path
