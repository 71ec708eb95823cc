"""A drafter that needs no training, for the recipe of the tests; one thread, since the tensors are tiny."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def drafting():
    return "drafter: {use: lookup}\n"
