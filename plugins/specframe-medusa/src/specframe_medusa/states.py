"""What the heads go on from: the last true feature as it is, or what Hydra++'s prefix layer makes of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe import Frontier, TokenTree
from specframe.neural import FeatureSession

if TYPE_CHECKING:
    from torch import Tensor

    from specframe import Committed
    from specframe.neural import State
    from specframe_medusa.networks import Prefix


class LastFeature:
    """The last true feature of every row: it is all that Medusa and Hydra remember."""

    feature: Tensor
    """[B, D], once something was committed."""

    def commit(self, news: Committed) -> None:
        """Keeps the feature of the token before the root."""
        features = news.features["last"]
        rows = torch.arange(len(features), device=features.device)
        self.feature = features[rows, news.count - 1]

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        self.feature = self.feature[rows]

    def base(self, root: Tensor) -> Tensor:
        """What the heads read, [B, D]."""
        return self.feature


class PrefixedFeature:
    """The prefix layer's output at the last true feature, its keys and values of those before cached."""

    def __init__(self, prefix: Prefix, batch: int) -> None:
        like = prefix.norm.weight
        self._norm = prefix.norm
        self._session = FeatureSession(prefix.layer, _alone, lambda tokens: like.new_zeros(*tokens.shape, 0), batch)
        self._base: Tensor | None = None

    def commit(self, news: Committed) -> None:
        """Takes in what was committed; the next draft's first forward reads it."""
        self._session.commit(news)
        self._base = None

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        self._session.keep(rows)
        self._base = None if self._base is None else self._base[rows]

    def base(self, root: Tensor) -> Tensor:
        """What the heads read, [B, D], for root [B]."""
        if self._base is None:
            stump = TokenTree.root_only(root)
            states = self._session.expand(Frontier(stump, torch.zeros_like(stump.tokens)))  # [B, 1, 1, D]
            self._base = self._norm(states[:, 0, 0])
        return self._base


def _alone(features: Tensor, state: State, counts: list[int] | None) -> tuple[Tensor, State]:
    """The prefix layer reads features as they are, with no token beside them."""
    return features, state
