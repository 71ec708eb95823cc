"""The decoding state of drafters that remember the last true feature alone, as Medusa and Hydra do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specframe.kernel.errors import CompositionError
from specframe.kernel.types import Committed, Frontier, PairSpec, Predicted
from specframe.neural.pairs import gather


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
