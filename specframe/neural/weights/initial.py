"""Initial weights of networks: the same in every run, and the target's own where a network stands for the target."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from specframe.kernel.interfaces import NeuralTarget

NetworkT = TypeVar("NetworkT", bound=nn.Module)


def seeded(build: Callable[[], NetworkT], target: NeuralTarget) -> NetworkT:
    """The network that `build` makes, ready to draft: on the target's device, in its dtype, in evaluation mode.

    Its random weights are the same in every run; no global generator is disturbed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would reach accelerators, too
        return build().to(target.device, target.dtype).eval()


@torch.no_grad()
def output_weight(target: NeuralTarget) -> Tensor:
    """The weight of the target's LM head, [V, D], scale included, read off its answers to unit vectors.

    Exact for every linear head; for one that caps its logits, the slope between 0 and a unit vector.
    """
    units = torch.eye(target.config.hidden_size, device=target.device, dtype=target.dtype)
    return (target.head(units) - target.head(torch.zeros_like(units[:1]))).T
