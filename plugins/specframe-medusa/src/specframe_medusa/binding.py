"""What binding to a target takes: the target itself, and its LM head's numbers for the heads to start from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specframe import CompositionError, InputError, NeuralTarget

if TYPE_CHECKING:
    from specframe import Target


def neural(target: Target, drafter: str) -> NeuralTarget:
    """The target itself, its last feature requested. Raises CompositionError for one without features."""
    if not isinstance(target, NeuralTarget):
        raise CompositionError(
            f"drafter {drafter} reads a neural target's features, and {type(target).__name__} has none; "
            "use the target hf, or a drafter such as lookup"
        )
    target.request(frozenset({"last"}))
    return target


@torch.no_grad()
def output_weight(target: NeuralTarget) -> Tensor:
    """The weight of the target's LM head, [V, D], scale included, read off its answers to unit vectors.

    Exact for every linear head; of one that caps its logits, the slope between 0 and a unit vector.
    """
    units = torch.eye(target.config.hidden_size, device=target.device, dtype=target.dtype)
    return (target.head(units) - target.head(torch.zeros_like(units[:1]))).T


@torch.no_grad()
def start_from(target: NeuralTarget, heads: Iterable[nn.Linear]) -> None:
    """Makes every LM head the target's own, as Medusa and Hydra start theirs."""
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


def too_deep(drafter: str, heads: int) -> CompositionError:
    """The error of a tree that is deeper than there are heads."""
    return CompositionError(
        f"drafter {drafter} has {heads} heads and drafts no deeper than {heads} levels; "
        f"make the tree at most {heads} deep, or train more heads"
    )
