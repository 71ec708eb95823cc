"""Penalties, biases and least lengths, one by one: against their formulas and against transformers' processors."""

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from specframe.sampling.penalties import Bias, LeastLength, Penalties


def reference(tokens, logits, prompt, repetition=1.0, frequency=0.0, presence=0.0, ignored=0):
    """The formulas one token at a time, after vLLM's sampler."""
    found = logits.clone()
    for row in range(len(tokens)):
        for token in range(logits.shape[1]):
            count = int((tokens[row, prompt:] == token).sum())
            if (tokens[row, ignored:] == token).any():
                found[row, token] *= repetition if found[row, token] <= 0 else 1 / repetition
            found[row, token] -= frequency * count + presence * (count > 0)
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "penalties", [(1.3, 0.0, 0.0), (2.0, 0.0, 0.0), (1.0, 0.7, 0.0), (1.0, 0.0, -1.5), (0.8, -0.5, 2.0)]
)
def test_penalties_are_those_of_the_formulas(penalties, seed):
    torch.manual_seed(seed)
    tokens, logits = torch.randint(0, 12, (3, 9)), torch.randn(3, 12, dtype=torch.float64)
    found = Penalties(4, *penalties)(tokens, logits)
    torch.testing.assert_close(found, reference(tokens, logits, 4, *penalties))
    if penalties[1:] == (0.0, 0.0):
        torch.testing.assert_close(found, RepetitionPenaltyLogitsProcessor(penalties[0])(tokens, logits.clone()))
    skipping = Penalties(4, *penalties, ignored=3)(tokens, logits)
    torch.testing.assert_close(skipping, reference(tokens, logits, 4, *penalties, ignored=3))


def test_biases_are_added_and_ends_are_banned_until_the_text_is_long_enough():
    tokens, logits = torch.tensor([[1, 2, 3]]), torch.zeros(1, 4)
    assert Bias(((1, 2.0), (3, -1.0)))(tokens, logits).tolist() == [[0, 2, 0, -1]]
    ban = LeastLength(prompt=2, least=2, ends=(0, 2))
    assert ban(tokens, logits).tolist() == [[-torch.inf, 0, -torch.inf, 0]]
    assert ban(torch.tensor([[1, 2, 3, 3]]), logits).tolist() == [[0, 0, 0, 0]]
