"""What spares a verifier the laws at temperature 0."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from specframe.kernel.interfaces import Verifier
from specframe.kernel.types import TokenTree, Verdict


@runtime_checkable
class GreedyVerifier(Verifier, Protocol):
    """A verifier that can do without laws where each gives one token probability 1, as at temperature 0."""

    def follow(self, tree: TokenTree, argmax: Tensor, gaps: Tensor | None = None) -> Verdict:
        """What `verify` gives for laws that are one-hot at argmax [B, N].

        Where gaps [B, N] bool are given, no token has mass after those nodes, and the verdict's copy on the host has
        the first of each row.
        """
        ...
