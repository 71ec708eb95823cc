"""Code shared by Medusa's and Hydra's heads: their counts, and the initial weights of their LM heads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from specframe import InputError
from specframe.neural import output_weight

if TYPE_CHECKING:
    from torch import nn

    from specframe.plugin import NeuralTarget


@torch.no_grad()
def start(heads: Iterable[nn.Linear], target: NeuralTarget) -> None:
    """Copies the target's LM head into every LM head, as Medusa and Hydra initialise theirs."""
    weight = output_weight(target)
    for head in heads:
        head.weight.copy_(weight)
        if head.bias is not None:
            head.bias.zero_()


def check_counts(drafter: str, heads: int, layers: int) -> None:
    """Raises InputError for fewer than one head or layer."""
    for name, value in (("heads", heads), ("layers", layers)):
        if value < 1:
            raise InputError(f"{drafter}: {name} must be at least 1, got {value}")
