"""A recipe of a small random model, of one character a token; one thread, since the tensors are tiny."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def recipe(model_folder, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"target: {{use: hf, model: '{model_folder}', dtype: float64}}\n"
        "drafter: {use: lookup}\n"
        "verifier: {use: match}\n"
        "sampling: {temperature: 0.0, max_new_tokens: 20}\n"
        "run: {prompts: [hello there, good morning], seed: 1, repeats: 1}\n"
    )
    return path
