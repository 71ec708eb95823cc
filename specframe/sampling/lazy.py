"""Laws after the nodes of a draft: each computed when a verifier visits the node, or all in advance."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from specframe.kernel.types import TokenTree
from specframe.sampling.laws import RowSampling, Sampling

NONE: Mapping[str, Tensor] = MappingProxyType({})


class Visits:
    """The target's laws after the nodes of a draft, each computed on demand.

    Computing a law over a large vocabulary takes longer than walking a small tree.
    """

    def __init__(
        self,
        sampling: Sampling | RowSampling,
        logits: Tensor,
        tree: TokenTree,
        features: Mapping[str, Tensor] = NONE,
    ) -> None:
        """The laws of logits [B, N, V] under the sampling, with the nodes' features [B, N, D], by tap."""
        self._sampling = sampling
        self._logits = logits
        self._tree = tree
        self._features = features
        batch, count, _ = logits.shape
        self._first = torch.arange(0, batch * count, count, device=logits.device)  # [B], where a row's logits begin
        self.gaps: Tensor | None = None
        """Mask of the visited nodes after which no token has mass, [B, N] bool; None: there were none."""

    @property
    def all(self) -> Tensor:
        """The laws after all nodes, p [B, N, V]; sets `gaps`."""
        p, self.gaps = self._sampling.law_and_gaps(self._logits, self._tree)
        return p

    def after(self, nodes: Tensor) -> Tensor:
        """The law after one node of each row, nodes [B] -> [B, V]."""
        place = nodes[:, None]
        logits = self.logits(nodes)[:, None]  # [B, 1, V]
        law, gaps = self._sampling.law_and_gaps(logits, self._tree, place)
        if gaps is not None:
            if self.gaps is None:
                self.gaps = torch.zeros_like(self._logits[..., 0], dtype=torch.bool)
            self.gaps.scatter_(1, place, gaps | self.gaps.gather(1, place))
        return law[:, 0]

    def logits(self, nodes: Tensor) -> Tensor:
        """The logits after one node of each row, nodes [B] -> [B, V]."""
        return self._logits.flatten(0, 1).index_select(0, self._first + nodes)

    def features(self, tap: str) -> Tensor:
        """The features at the nodes, [B, N, D]. Raises KeyError for a tap without."""
        return self._features[tap]


class AllLaws:
    """Laws computed in advance, p [B, N, V], with the nodes' features [B, N, D], by tap."""

    def __init__(self, p: Tensor, features: Mapping[str, Tensor] = NONE) -> None:
        batch, count, vocab = p.shape
        self.all = p
        self._laws = p.reshape(batch * count, vocab)
        self._features = features
        self._first = torch.arange(0, batch * count, count, device=p.device)  # [B], where each row's laws begin

    def after(self, nodes: Tensor) -> Tensor:
        """The law after one node of each row, nodes [B] -> [B, V]."""
        return self._laws.index_select(0, self._first + nodes)

    def logits(self, nodes: Tensor) -> Tensor:
        """The logarithms of the laws after one node of each row, nodes [B] -> [B, V]."""
        return self.after(nodes).log()

    def features(self, tap: str) -> Tensor:
        """The features at the nodes, [B, N, D]. Raises KeyError for a tap without."""
        return self._features[tap]
