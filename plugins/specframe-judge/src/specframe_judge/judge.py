"""Judge decoding: a drafted token is accepted if a linear head classifies it as harmless."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, cast

import torch

from specframe import InputError
from specframe.plugin import Needs
from specframe_judge.head import LinearHead, read
from specframe_judge.walk import walk

if TYPE_CHECKING:
    from specframe.plugin import Laws, NeuralTarget, RandomSource, Target, TokenTree, Verdict


SURE = 1e4
"""Weight of an artificial head whose output is near 0 or 1, independently of any threshold below 1."""


class Judge:
    """Accepts the target's own token, and any other that a linear head classifies as harmless. Lossy.

    The head reads the target's feature at the drafted token's own node, the state after reading the token, from the
    same forward pass. Of several children, the target's own token has priority, then the most probable harmless one.
    The target's token is drawn with the noise of its position, as by `match`: with threshold 1 the text is that of
    `match`, token for token.

    Sources: Bachmann et al. 2025, Judge Decoding, arXiv 2501.19309; labels as in Garipov et al. 2025, AutoJudge, arXiv
    2504.20039.

    Args:
        weights: a head: a folder or a name in the zoo.
        threshold: the probability of being harmless above which a token is accepted, from 0 to 1.
        tap: the target's feature that the head reads.
    """

    lossless = False
    needs = Needs(by_position=True)

    def __init__(self, *, weights: str | None = None, threshold: float = 0.5, tap: str = "last") -> None:
        if not 0 <= threshold <= 1:
            raise InputError(f"judge: threshold must lie between 0 and 1, not {threshold:g}")
        self.weights = weights
        self.threshold = threshold
        self.tap = tap
        self.taps = frozenset({tap})
        self.head: LinearHead | None = None
        self._vocab: int | None = None

    def untrained(self, vocab: int) -> Judge:
        """Returns a copy with random weights for a target of `vocab` tokens; about half of them pass as harmless."""
        small = copy(self)
        small.weights, small._vocab = None, vocab
        return small

    def strict(self) -> Judge:
        """Returns a copy with threshold 1, which equals `match`."""
        strict = copy(self)
        strict.threshold = 1.0
        return strict

    def bind(self, target: Target) -> None:
        """Loads the head.

        Raises InputError without weights, and WeightsError for a head of another target, tap or width.
        """
        device = getattr(target, "device", None)
        if self._vocab is not None:
            self.head = _alternating(cast("NeuralTarget", target).config.hidden_size)
        elif self.weights is None:
            raise InputError("judge: it needs `weights`, the folder of a head")
        else:
            self.head = read(self.weights, target, self.tap)
        self.head.to(device)

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """Returns the accepted path and the bonus; laws are computed along the way, features of all nodes judged."""
        if self.head is None:
            raise InputError("judge: bind it to a target first")
        harmless = self.head(laws.features(self.tap)) > self.threshold if tree.levels else tree.valid  # [B, N]
        return walk(tree, laws, random, lambda node: harmless)


def _alternating(width: int) -> LinearHead:
    head = LinearHead(width)
    head.weight.copy_(SURE * torch.tensor([1.0, -1.0]).repeat(width)[:width])
    return head
