"""The native LSTM is the literal one over its own maps to the gates."""

import torch

from specframe.native.blocks import round_to_blocks
from specframe.native.linear import QuantizedLinear
from specframe.native.modules import Cells

WIDTH = 64


def linear(noise):
    return QuantizedLinear(round_to_blocks(torch.randn(4 * WIDTH, WIDTH, generator=noise) / 4, 8))


def test_the_native_lstm_is_the_literal_one():
    noise = torch.Generator().manual_seed(5)
    layers = [(linear(noise), linear(noise)) for _ in range(2)]
    x, hidden, cell = (torch.randn(*shape, WIDTH, generator=noise) for shape in [(3, 4), (2, 3), (2, 3)])
    out, (last_hidden, last_cell) = Cells(layers).run(x, hidden, cell)
    read = x
    for number, (into, back) in enumerate(layers):
        h, c, made = hidden[number], cell[number], []
        for step in range(x.shape[1]):
            enter, forget, content, leave = (into(read[:, step].contiguous()) + back(h.contiguous())).chunk(4, -1)
            c = forget.sigmoid() * c + enter.sigmoid() * content.tanh()
            h = leave.sigmoid() * c.tanh()
            made.append(h)
        read = torch.stack(made, 1)
        torch.testing.assert_close(last_hidden[number], h, rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(last_cell[number], c, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(out, read, rtol=1e-2, atol=1e-2)


def test_its_tangent_is_as_exact_near_zero_as_elsewhere():
    """With maps of zeros a hidden state is half the tangent of half the cell's, which no rounding of maps hides."""
    nothing = QuantizedLinear(round_to_blocks(torch.zeros(4 * WIDTH, WIDTH), 8))
    cell = torch.logspace(-4, 1, 2 * 8 * WIDTH).view(2, 8, WIDTH)
    empty = torch.zeros_like(cell)
    _, (hidden, _) = Cells([(nothing, nothing)] * 2).run(torch.zeros(8, 1, WIDTH), empty, cell)
    torch.testing.assert_close(2 * hidden.double(), (cell.double() / 2).tanh(), rtol=1e-6, atol=0)
