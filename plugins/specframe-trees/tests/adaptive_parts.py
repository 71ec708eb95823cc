"""Cycles by hand for tests of adaptive drafts."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.kernel.types import Prompts, TokenTree, Verdict
from specframe.sampling.laws import Sampling
from specframe.testing.policies import cycle_of
from specframe_trees.adaptive import Adaptive

WARM = Sampling(temperature=1.0)
Q = torch.tensor([[0.7, 0.3], [0.4, 0.6]], dtype=torch.float64)
DEPTH = 6


def begin(policy: Adaptive, rows: int) -> None:
    """A session of so many rows, admitted."""
    policy.open(rows, 100)
    root = torch.zeros(rows, dtype=torch.int64)
    first = TokenTree.root_only(root)
    verdict = Verdict(first.tokens[:, :0], root, root)
    policy.observe(cycle_of(first, verdict, 2, Prompts(root[:, None], root + 1)))


def observe(policy: Adaptive, draft: TokenTree, length: Tensor) -> None:
    """A cycle that accepted paths of these lengths."""
    policy.observe(cycle_of(draft, Verdict(draft.tokens[:, : draft.levels], length, length), 2))


def depth_of(draft: TokenTree) -> Tensor:
    return (draft.depth * draft.valid).amax(1)


def linear(node: float, forward: float) -> list[float]:
    """Costs of a chain: the target's forward is 1, a node more and a forward of the drafter some of that."""
    return [1 + (node + forward) * depth for depth in range(DEPTH + 1)]
