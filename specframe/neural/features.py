"""The target's features that a drafter pairs with tokens: one or several taps, and a session's last ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from specframe.kernel.errors import CompositionError
from specframe.kernel.types import Committed, Frontier, PairSpec, Predicted


def gather(spec: PairSpec, features: Mapping[str, Tensor]) -> Tensor:
    """The features of a spec's taps side by side, those `given` at the end: [.., A D] of [.., D] each."""
    parts = [features[tap] for tap in spec.reads]
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
        self.epsilon = eps

    @property
    def weights(self) -> Tensor:
        """The norms' weights, [A, D]."""
        return torch.stack([norm.get_parameter("weight") for norm in self.norms])

    def forward(self, features: Tensor) -> Tensor:
        """[.., A D] -> [.., D]."""
        parts = features.chunk(len(self.norms), -1)
        fused: Tensor = self.fc(torch.cat([norm(part) for norm, part in zip(self.norms, parts, strict=True)], -1))
        return fused


class LastFeature:
    """The feature of the token before the root, of every row.

    Args:
        expand: the predictions below each frontier node, given these features [B, D].
        spec: which features.
    """

    def __init__(self, expand: Callable[[Tensor, Frontier], Predicted], spec: PairSpec) -> None:
        self._expand = expand
        self._spec = spec
        self._features: Tensor | None = None

    @property
    def features(self) -> Tensor:
        """The features [B, D]. Raises CompositionError before anything was committed."""
        if self._features is None:
            raise CompositionError("a drafter was asked for a draft before anything was committed")
        return self._features

    def commit(self, committed: Committed) -> None:
        """Keeps the last of the committed features; rows that come with a prompt stand behind the others."""
        features = gather(self._spec, committed.features)
        last = features[torch.arange(len(features), device=features.device), committed.count - 1]
        joins = committed.prompt is not None and self._features is not None
        self._features = torch.cat([self.features, last]) if joins else last

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._features = self.features[rows]

    def expand(self, frontier: Frontier) -> Predicted:
        """The predictions below each frontier node."""
        return self._expand(self.features, frontier)
