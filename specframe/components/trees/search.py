"""Common parts of tree searches: the drafter level by level, and draws that may go unused."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.trees.growth import Growth
from specframe.kernel.types import Expand, Frontier, Proposal


class Forecast:
    """The proposals below one beam after another, asked for a level at a time, over the whole vocabulary.

    A drafter of K levels is called for every K-th beam; the levels between are read off its last proposal,
    at the frontier node that stands above each beam node.
    """

    def __init__(self, expand: Expand, growth: Growth) -> None:
        self._expand = expand
        self._growth = growth
        self._proposal: Proposal | None = None
        self._level = 0
        self._origin: Tensor | None = None  # [B, W] the frontier node above each beam node; None: itself

    def below(self, beam: Tensor, above: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits [B, W, V] and confidence [B, W], or None, of the level below the beam's nodes [B, W].

        `above` [B, W] is under which node of the last beam, by its place there, each node stands; None
        at first.
        """
        if self._proposal is None or self._level == self._proposal.logits.shape[2]:
            self._proposal = self._expand(Frontier(self._growth.tree, beam)).whole
            self._level, self._origin = 0, None
        elif above is not None:
            self._origin = above if self._origin is None else self._origin.gather(1, above)
        logits = self._proposal.logits[:, :, self._level]  # [B, F, V]
        confidence = self._proposal.confidence
        if confidence is not None:
            confidence = confidence[:, :, self._level]  # [B, F]
        self._level += 1
        if self._origin is None:
            return logits, confidence
        rows = self._origin[..., None].expand(-1, -1, logits.shape[-1])
        return logits.gather(1, rows), None if confidence is None else confidence.gather(1, self._origin)


def one_of(weights: Tensor, mass: Tensor) -> Tensor:
    """Laws ready to draw from: weights [B, ..., V] over their sum, mass [B, ...]; where that is 0, index 0 for sure.

    Unused draws are taken from a law of one option, so give them no mass: in a certificate a draw is a fork.
    """
    law = weights / mass.where(mass > 0, torch.inf).to(weights.dtype)[..., None]
    law[..., 0] += mass <= 0
    return law
