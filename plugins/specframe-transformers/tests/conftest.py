"""A small model, its tokenizer, and the helper modules within reach; one thread, since the tensors are tiny."""

import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model(model_folder):
    return AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float64)


@pytest.fixture(scope="module")
def tokenizer(model_folder):
    return AutoTokenizer.from_pretrained(model_folder)
