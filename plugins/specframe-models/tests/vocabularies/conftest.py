"""Puts this folder's helper modules within reach, and settles for one thread and one seed: the tensors are tiny."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def seeded():
    """The same numbers whichever tests ran before."""
    torch.manual_seed(0)
