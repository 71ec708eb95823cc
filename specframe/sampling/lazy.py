"""Laws after the nodes that a verifier visits, one by one: made when they are asked for, or all beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from specframe.kernel.types import TokenTree
from specframe.sampling.laws import RowSampling, Sampling

NONE: Mapping[str, Tensor] = MappingProxyType({})


class Visits:
    """The target's laws after the nodes of a draft, each made when it is asked for.

    A law over a large vocabulary takes longer to make than a small tree takes to walk.
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
        """Mask of the nodes asked for after which no token has mass, [B, N] bool; None: there was none."""

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


def reached_argmax(sampling: Sampling | RowSampling, logits: Tensor, tree: TokenTree) -> tuple[Tensor, Tensor]:
    """The argmax token after each node that greedy decoding reaches, and a mask of those after which no token has mass.

    For logits [B, N, V]: [B, N] int64, -1 after other nodes, and [B, N] bool. Processors, which a grammar makes slow,
    are asked about the accepted path alone.
    """
    found = torch.full_like(tree.tokens, -1)
    gaps = torch.zeros_like(found, dtype=torch.bool)
    node = found.new_zeros(len(found), 1)  # [B, 1]
    for _ in range(tree.levels + 1):
        here = logits.gather(1, node[..., None].expand(-1, -1, logits.shape[-1]))  # [B, 1, V]
        best, missing = sampling.argmax_and_gaps(here, tree, node)
        found.scatter_(1, node, best)
        if missing is not None:
            gaps.scatter_(1, node, missing)
        child = tree.valid & (tree.parent == node) & (tree.tokens == best)
        if not child.any():
            break
        node = child.byte().argmax(1, keepdim=True).where(child.any(1, keepdim=True), node)
    return found, gaps


def chosen(best: Tensor) -> tuple[Tensor, Tensor | None]:
    """The tokens of the largest logits, and a mask of the nodes after which no token has mass: [B, N] each.

    Given tokens [B, N] that are -1 after such a node, as in `GreedyScores`; None: there are none.
    """
    if best.is_cpu and all(min(row) >= 0 for row in best.tolist()):  # which is sooner known than a kernel's answer
        return best, None
    gaps = best < 0
    return (best.masked_fill(gaps, 0), gaps) if gaps.any() else (best, None)


class AllLaws:
    """Laws that were made beforehand, p [B, N, V], with the nodes' features [B, N, D], by tap."""

    def __init__(self, p: Tensor, features: Mapping[str, Tensor] = NONE) -> None:
        batch, count, vocab = p.shape
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
