"""The drafter that drafts nothing: plain autoregressive decoding in the same loop."""

from __future__ import annotations

from torch import Tensor

from specframe.kernel.interfaces import RandomSource, Sampling, Target, TreePolicy
from specframe.kernel.types import Committed, Draw, TokenTree


class NoDrafter:
    """Proposes the root alone, so a cycle is one token: the baseline that speedups are measured against."""

    taps: frozenset[str] = frozenset()
    draws: frozenset[Draw] | None = frozenset({Draw.TOP})
    nodes: int | None = 1

    def bind(self, target: Target) -> None:
        """Needs nothing of the target."""

    def propose(self, root: Tensor, tree: TreePolicy | None, sampling: Sampling, random: RandomSource) -> TokenTree:
        """The stump of root [B]."""
        return TokenTree.stump(root)

    def commit(self, news: Committed) -> None:
        """Remembers nothing."""

    def keep(self, rows: Tensor) -> None:
        """Has no rows to drop."""
