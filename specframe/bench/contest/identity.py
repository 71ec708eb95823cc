"""Whether greedy contestants give the tokens of transformers' `generate`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch

from specframe.decoding.baseline import find_divergences, generate_with_transformers
from specframe.decoding.settings import SamplingSettings
from specframe.kernel.interfaces import Target
from specframe.kernel.plugins.registry import one_line

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Identity:
    """How a continuation compares with the reference's."""

    same: bool | None = None
    """Whether it is the same, near ties included; None where that means nothing."""
    gap: float | None = None
    """How far apart the target's logits of the two tokens are where the texts part; None where one is only shorter."""
    noise: float | None = None
    """How far arithmetic moves a logit there."""


class Reference:
    """One target's greedy continuations by `generate`, made once a prompt and never timed."""

    def __init__(self, target: Target, sampling: SamplingSettings) -> None:
        model: Any = getattr(target, "model", None)
        self._model = model if callable(getattr(model, "generate", None)) else None
        self._sampling = sampling
        self._ends = frozenset() if sampling.ignore_eos else frozenset(getattr(target, "ends", ()))
        self._known: dict[tuple[int, ...], list[int]] = {}

    @property
    def applies(self) -> bool:
        """Whether there is anything to compare with: a transformers model, decoding greedily."""
        return self._model is not None and self._sampling.temperature == 0

    def learn(self, row: Sequence[int], tokens: Sequence[int]) -> None:
        """Notes the tokens that `generate` gave for a prompt that it decoded alone."""
        self._known.setdefault(tuple(row), list(tokens))

    def compare(self, row: Sequence[int], tokens: Sequence[int]) -> Identity:
        """How the continuation of a prompt compares with that of `generate`."""
        if not self.applies:
            return Identity()
        theirs = self._known.get(tuple(row))
        if theirs is None:
            try:
                with torch.inference_mode():
                    theirs = generate_with_transformers(self._model, [row], self._sampling, self._ends)[0]
            except Exception as error:  # the bench goes on without it
                logger.warning("nothing is compared with transformers' generate: it failed: %s", one_line(error))
                self._model = None
                return Identity()
            self._known[tuple(row)] = theirs
        found = find_divergences(self._model, [row], [tokens], [theirs])
        if not found:
            return Identity(True)
        first = found[0]
        return Identity(first.tie, first.gap, first.noise) if isfinite(first.gap) else Identity(False)
