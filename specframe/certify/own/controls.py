"""Negative controls: verifiers broken on purpose. A certificate is only as good as what makes it fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from specframe.kernel.interfaces import RandomSource, Verifier
from specframe.kernel.promises import Needs
from specframe.kernel.types import TokenTree, Verdict


class Wrong(Protocol):
    """A wrong choice of the token after the accepted path."""

    name: str

    def law(self, tree: TokenTree, last: Tensor, p: Tensor) -> tuple[Tensor, bool]:
        """The distribution [B, V] that the token is drawn from, and whether it may differ from the right one.

        `last` [B, 1] is the last accepted node, and p [B, V] the target's distribution after it.
        """
        ...


class Unprocessed:
    """A tenth of the target's law is replaced by the uniform one, as if temperature or truncation had not reached it.

    This shows under every composition and at every temperature.
    """

    name = "bonus drawn from an unprocessed distribution"

    def law(self, tree: TokenTree, last: Tensor, p: Tensor) -> tuple[Tensor, bool]:
        """The mixture; over a vocabulary of one token it is the law itself."""
        vocab = p.shape[-1]
        return 0.9 * p + 0.1 / vocab, vocab > 1


class Unreduced:
    """The target's law once more: what was refused is forgotten. It shows where drafts differ from the target."""

    name = "residual skipped: correction drawn from the target's distribution"

    def law(self, tree: TokenTree, last: Tensor, p: Tensor) -> tuple[Tensor, bool]:
        """The law, and whether a draft was refused that the target could have emitted."""
        refused = (tree.parent == last) & tree.valid  # [B, N]
        return p, bool((refused & (p.gather(1, tree.tokens) > 0)).any())


WRONG: tuple[Wrong, ...] = (Unprocessed(), Unreduced())
"""Every way in which the certificate breaks a composition to see whether it notices."""


@dataclass(frozen=True)
class WrongBonus:
    """A verifier, but the token after the path is chosen wrongly."""

    inner: Verifier
    wrong: Wrong
    differed: list[bool] = field(default_factory=list)
    """Filled as it runs: whether it had another law than the verifier's to draw from."""
    lossless = False
    needs = Needs(exact=True)

    def verify(self, tree: TokenTree, p: Tensor, random: RandomSource) -> Verdict:
        """The inner verdict with another bonus."""
        verdict = self.inner.verify(tree, p, random)
        last = verdict.slots.gather(1, verdict.length[:, None])  # [B, 1]
        after = p.gather(1, last[..., None].expand(-1, -1, p.shape[-1]))[:, 0]  # [B, V]
        law, differs = self.wrong.law(tree, last, after)
        self.differed.append(differs)
        return Verdict(path=verdict.path, length=verdict.length, bonus=random.categorical(law).to(torch.int64))
