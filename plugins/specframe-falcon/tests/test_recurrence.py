"""The recurrence of the LSTM in training, held to nn.LSTM: outputs, states and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from specframe_falcon.recurrence import recur


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (3, 7)])
def test_outputs_states_and_gradients_are_those_of_an_lstm(batch, length):
    torch.manual_seed(length)
    lstm = torch.nn.LSTM(6, 5, batch_first=True).double()
    into, back, bias_into, bias_back = lstm.all_weights[0]
    x = torch.randn(batch, length, 6, dtype=torch.float64, requires_grad=True)
    hidden, cell = torch.randn(2, batch, 5, dtype=torch.float64)
    wanted, (last, end) = lstm(x, (hidden[None], cell[None]))
    found = recur(linear(x, into, bias_into + bias_back), back, hidden, cell)
    for one, other in zip(found, (wanted, last[0], end[0]), strict=True):
        assert torch.allclose(one, other, atol=1e-14)
    pulls = [torch.randn_like(part) for part in found]
    sums = [
        sum((part * pull).sum() for part, pull in zip(made, pulls, strict=True))
        for made in (found, (wanted, last[0], end[0]))
    ]
    leaves = [x, into, back, bias_into, bias_back]
    for one, other in zip(*(torch.autograd.grad(each, leaves) for each in sums), strict=True):
        assert torch.allclose(one, other, atol=1e-13)
