"""A server around a small random model: one character a token, float64, so that no text hangs on rounding."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from serving import Serving, make_pipeline

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pipeline():
    return make_pipeline()


@pytest.fixture
def serving(pipeline):
    with Serving(pipeline) as running:
        yield running
