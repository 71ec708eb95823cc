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
        patch.setattr("specframe.neural.weights.weight_cache.cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="session")
def model():
    return make_model()
