"""What is paired with a token: one of the target's features, or several, each with its norm."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from specframe.kernel.types import PairSpec


def gather(spec: PairSpec, features: Mapping[str, Tensor]) -> Tensor:
    """The features of a spec's taps side by side: [.., A D] of [.., D] each."""
    parts = [features[tap] for tap in spec.taps]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class TapFusion(nn.Module):
    """Several taps fused into one: a root mean square norm of each, then a linear map (EAGLE-3.1's `fc_norm`, `fc`).

    Args:
        taps: how many, A.
        size: the width of each, D, and of the result.
        eps: of the norms.
    """

    def __init__(self, taps: int, size: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(size, eps=eps) for _ in range(taps))
        self.fc = nn.Linear(taps * size, size, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """[.., A D] -> [.., D]."""
        parts = features.chunk(len(self.norms), -1)
        fused: Tensor = self.fc(torch.cat([norm(part) for norm, part in zip(self.norms, parts, strict=True)], -1))
        return fused
