"""Groups into which the router divides the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor


def edges(vocab: int, groups: int) -> list[int]:
    """Returns the groups' first tokens, then the vocabulary's size: group n holds edges[n] .. edges[n + 1] - 1.

    Groups are consecutive tokens, and their sizes differ by at most one (CORAL, Section 3.3: V / N).
    """
    return [n * vocab // groups for n in range(groups + 1)]


def group_masses(law: Tensor, groups: int) -> Tensor:
    """Returns the probability of each group: [.., V] -> [.., N] (CORAL, Section 3.3: q_router)."""
    ends = torch.tensor(edges(law.shape[-1], groups)[1:], device=law.device)
    group = torch.searchsorted(ends, torch.arange(law.shape[-1], device=law.device), right=True)  # [V]
    return law.new_zeros(*law.shape[:-1], groups).index_add(-1, group, law)
