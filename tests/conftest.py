import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny tensors: more threads only wait for each other."""
    torch.set_num_threads(1)
