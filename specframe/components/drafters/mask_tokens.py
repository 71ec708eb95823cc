"""PARD's mask tokens: their number, their token id, and the draft depth that they allow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from specframe.kernel.capabilities import Promise
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.types import Frontier


@dataclass(frozen=True)
class Masks:
    """Number and token id of mask tokens, 0 for draft models without masks. Raises InputError for a negative number."""

    count: int = 0
    token: int | None = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise InputError(f"a model drafter's masks must not be negative, not {self.count}")

    @property
    def promise(self) -> Promise:
        """Largest draft depth, all of one forward pass: with masks, one level per mask and one for the root."""
        levels = self.count + 1
        return Promise(depth=levels, block=levels) if self.count else Promise(path_in_frontier=True)

    @property
    def entry(self) -> dict[str, int]:
        """Config entry of the mask token, under PARD's name."""
        return {"pard_token": self.token} if self.count and self.token is not None else {}

    def of(self, config: Any, vocab: int) -> Masks:
        """A copy with the mask token of a model's config as the default. Raises CompositionError if it is invalid."""
        if not self.count:
            return self
        token = getattr(config, "pard_token", None) if self.token is None else self.token
        if token is None:
            raise CompositionError(
                f"a model drafter with masks needs the token that it was trained to fill in, one of {vocab}: give "
                "mask_token (its config names no pard_token)"
            )
        if not 0 <= token < vocab:
            raise CompositionError(f"mask_token is {token}, and the drafting model has tokens 0 to {vocab - 1}")
        return replace(self, token=token)

    def small(self, vocab: int) -> Masks:
        """A copy with the same number of masks for a model of another vocabulary size."""
        return replace(self, token=vocab - 1 if self.count else None)

    def laid(self, tokens: Tensor, after: Tensor) -> Tensor:
        """Tokens [B, T] with the mask token at the positions past a row's text, `after` [B, T] bool."""
        return tokens if not self.count or self.token is None else tokens.masked_fill(after, self.token)

    def check(self, frontier: Frontier) -> None:
        """Raises CompositionError for nodes below the root, for which masks give no proposals."""
        if bool((frontier.nodes != 0).any()):
            raise CompositionError(
                f"the drafting model fills {self.count} masks and drafts no deeper: make the tree at most "
                f"{self.count + 1} deep, or raise masks"
            )
