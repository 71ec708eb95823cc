"""What spares a verifier laws: all of them at temperature 0, else those after nodes that it does not come to."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from specframe.kernel.interfaces import Verifier
from specframe.kernel.sampling import RandomSource
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


class Laws(Protocol):
    """The target's laws after the nodes of a draft."""

    def after(self, nodes: Tensor) -> Tensor:
        """The law after one node of each row, nodes [B] -> [B, V]."""
        ...


@runtime_checkable
class VisitingVerifier(Verifier, Protocol):
    """A verifier that needs the laws after the nodes on its way alone."""

    def verify_on_demand(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """What `verify` gives for all of the laws."""
        ...


def greedy_of(verifier: Verifier) -> GreedyVerifier | None:
    """The verifier, if it can do without laws at temperature 0."""
    return verifier if isinstance(verifier, GreedyVerifier) and _own(verifier, "follow") else None


def visiting_of(verifier: Verifier) -> VisitingVerifier | None:
    """The verifier, if it asks for laws."""
    return verifier if isinstance(verifier, VisitingVerifier) and _own(verifier, "verify_on_demand") else None


def _own(verifier: Verifier, shortcut: str) -> bool:
    """Whether a shortcut is as near as `verify`: a class that verifies in its own way does not inherit another's."""
    order = type(verifier).__mro__
    places = [next((at for at, each in enumerate(order) if name in vars(each)), -1) for name in (shortcut, "verify")]
    return places[0] <= places[1]


class AllLaws:
    """Laws that were made beforehand, p [B, N, V]."""

    def __init__(self, p: Tensor) -> None:
        batch, count, vocab = p.shape
        self._laws = p.reshape(batch * count, vocab)
        self._first = torch.arange(0, batch * count, count, device=p.device)  # [B], where each row's laws begin

    def after(self, nodes: Tensor) -> Tensor:
        """The law after one node of each row, nodes [B] -> [B, V]."""
        return self._laws.index_select(0, self._first + nodes)
