"""A network of other depth that begins from a trained one: deeper with the same function, or without some layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from net import Net


def grow(net: Net, times: int) -> Net:
    """Return the network with ``times`` as many layers and the same function, to rounding.

    Each layer is followed by copies of itself whose projections back into the residual stream are zero (block
    expansion, as LLaMA Pro describes it).
    """
    grown = choose(net, [index // times for index in range(net.shape.layers * times)])
    with torch.no_grad():
        for index, block in enumerate(grown.blocks):
            if index % times:
                block.out.weight.zero_()
                block.down.weight.zero_()
    return grown


def choose(net: Net, layers: Sequence[int]) -> Net:
    """Return the network that runs these layers of ``net``, in this order.

    Raises IndexError where ``net`` has no such layer.
    """
    chosen = Net(replace(net.shape, layers=len(layers)))
    with torch.no_grad():
        chosen.embedding.copy_(net.embedding)
        chosen.norm.copy_(net.norm)
        for block, layer in zip(chosen.blocks, layers, strict=True):
            block.load_state_dict(net.blocks[layer].state_dict())
    return chosen
