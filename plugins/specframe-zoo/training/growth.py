"""A deeper network that begins as the network it grew from.

Each layer is followed by copies of itself whose projections back into the residual stream are zero, so the
grown network computes what the first one did (to rounding) and training goes on from its loss (block
expansion, as LLaMA Pro describes it).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from net import Net, load


def grow(folder: Path, times: int) -> Net:
    """Return the network of ``folder`` with ``times`` as many layers and the same function."""
    small = load(folder, torch.device("cpu"))
    net = Net(replace(small.shape, layers=small.shape.layers * times))
    with torch.no_grad():
        net.embedding.copy_(small.embedding)
        net.norm.copy_(small.norm)
        for index, block in enumerate(net.blocks):
            block.load_state_dict(small.blocks[index // times].state_dict())
            if index % times:
                block.out.weight.zero_()
                block.down.weight.zero_()
    return net
