"""A small model, its tokenizer and a recipe that drafts for it; one thread, since the tensors are tiny."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model(model_folder):
    return AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float64)


@pytest.fixture(scope="module")
def tokenizer(model_folder):
    return AutoTokenizer.from_pretrained(model_folder)


@pytest.fixture
def recipe(model_folder, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"target: {{use: hf, model: '{model_folder}', dtype: float64}}\n"
        "drafter: {use: falcon, block: 2}\n"
        "tree: {use: dynamic, depth: 4, width: 3, nodes: 8}\n"
        "verifier: {use: match}\n"
        "sampling: {temperature: 0.0, max_new_tokens: 20}\n"
        "run: {prompts: [hello there, good morning], seed: 1, repeats: 1}\n"
    )
    return path
