"""The storage of keys and values over several sessions of one target."""

import pytest
import torch

from specframe.components.targets.forward import state
from specframe.kernel.types import Prompts
from specframe.testing import tiny_target

VOCAB = 12
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def prompts(*rows):
    return Prompts(torch.tensor(rows), torch.tensor([len(row) for row in rows]))


def storage(target):
    return target._state.cache._blocks[0]


@pytest.fixture
def target():
    found = tiny_target(vocab=VOCAB, dtype=torch.float64)
    found.open(2, 64)
    found.admit(prompts(PROMPT, PROMPT[::-1]))
    return found


def test_the_next_session_takes_the_same_storage_and_finds_it_empty(target):
    before = storage(target)
    assert before.any()
    target.open(2, 64)
    assert storage(target) is before and not before.any()


def test_a_session_of_other_sizes_takes_other_storage(target):
    before = storage(target)
    for sizes in ((3, 64), (2, 80)):
        target.open(*sizes)
        target.admit(prompts(PROMPT))
        assert storage(target) is not before and len(storage(target)[0]) == sizes[0]


def test_sessions_within_and_without_inference_mode_follow_each_other(monkeypatch):
    """The storage outlives both, and tensors made in inference mode could not be written outside of it."""
    target, fresh = tiny_target(vocab=VOCAB, dtype=torch.float64), tiny_target(vocab=VOCAB, dtype=torch.float64)
    monkeypatch.setattr(state, "FIRST", 4)  # so that the storage grows
    with torch.inference_mode():
        target.open(2, 100)
        target.admit(prompts(PROMPT * 5))
    target.open(2, 100)
    fresh.open(2, 100)
    found, wanted = (each.admit(prompts(PROMPT))[1].logits for each in (target, fresh))
    assert torch.equal(found, wanted)
