import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything reads it: no test downloads anything

import pytest
import torch

from tests.small_model import make_model


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny tensors: more threads only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def own_notes(tmp_path_factory):
    """Which kinds of model have been checked is remembered for this run, not in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setattr("specframe.components.targets.probe.cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="session")
def model():
    return make_model()


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
