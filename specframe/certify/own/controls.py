"""Negative controls: verifiers broken on purpose. A certificate is only as good as what makes it fail."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from specframe.kernel.interfaces import RandomSource, Verifier
from specframe.kernel.promises import Needs
from specframe.kernel.types import TokenTree, Verdict


@dataclass(frozen=True)
class UnprocessedBonus:
    """The verifier, but the token after the path comes from a law that skipped some of the processing.

    A tenth of the target's law is replaced by the uniform one, as if temperature or truncation had not
    reached that row. This shows under every composition and at every temperature.
    """

    inner: Verifier
    differed: list[bool] = field(default_factory=list)
    """Filled as it runs: whether it had another law than the verifier's to draw from."""
    name = "bonus drawn from an unprocessed distribution"
    lossless = False
    needs = Needs(exact=True)

    def verify(self, tree: TokenTree, p: Tensor, random: RandomSource) -> Verdict:
        """The inner verdict with another bonus."""
        verdict = self.inner.verify(tree, p, random)
        law = _last_law(p, verdict)
        self.differed.append(law.shape[-1] > 1)
        return _with_bonus(verdict, random.categorical(0.9 * law + 0.1 / law.shape[-1]))


@dataclass(frozen=True)
class SkippedResidual:
    """The verifier, but the token after the path is drawn from the target's law once more.

    What was refused is forgotten: drafts differ from the target only if the residual is used.
    """

    inner: Verifier
    differed: list[bool] = field(default_factory=list)
    """Filled as it runs: whether it forgot a refused draft that the target could have emitted."""
    name = "residual skipped: correction drawn from the target's distribution"
    lossless = False
    needs = Needs(exact=True)

    def verify(self, tree: TokenTree, p: Tensor, random: RandomSource) -> Verdict:
        """The inner verdict with a bonus that knows of no refusal."""
        verdict = self.inner.verify(tree, p, random)
        law = _last_law(p, verdict)
        last = verdict.slots.gather(1, verdict.length[:, None])  # [B, 1]
        refused = (tree.parent == last) & tree.valid  # [B, N]
        self.differed.append(bool((refused & (law.gather(1, tree.tokens) > 0)).any()))
        return _with_bonus(verdict, random.categorical(law))


def _last_law(p: Tensor, verdict: Verdict) -> Tensor:
    """The target's law after the accepted path: [B, V]."""
    last = verdict.slots.gather(1, verdict.length[:, None])  # [B, 1]
    return p.gather(1, last[..., None].expand(-1, -1, p.shape[-1]))[:, 0]


def _with_bonus(verdict: Verdict, bonus: Tensor) -> Verdict:
    return Verdict(path=verdict.path, length=verdict.length, bonus=bonus.to(torch.int64))
