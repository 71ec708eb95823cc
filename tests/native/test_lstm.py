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
