"""Traps on the verifier's side: residuals, retries, truncation, shared and stale randomness."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specframe.kernel.capabilities import Needs, Promise
from specframe.kernel.sampling import Laws, RandomSource
from specframe.kernel.types import Committed, Context, TokenTree, Verdict
from specframe.testing.tables import LazyUniform
from tests.certify.traps.drafts import one, recorded
from tests.certify.traps.instances import (
    IID,
    Q3,
    Drafts,
    Q,
    Rejection,
    norm,
    path,
    without,
)


class RefusesUnknown(Rejection):
    """Refuses a token that the recorded law excludes, and updates the residual all the same."""

    def share(self, left: Tensor, q: Tensor, token: Tensor) -> Tensor:
        """0 where q is 0."""
        return torch.where(q.gather(1, token)[:, 0] > 0, super().share(left, q, token), 0.0)


class FullResidual(Rejection):
    """Without replacement: the ratio with the renormalised law, the residual with the original one."""

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The verdict."""
        p = laws.all
        self.original = p if tree.q is None else tree.q[:, 0]
        return super().verify(tree, laws, random)

    def rest(self, left: Tensor, q: Tensor, token: Tensor, root: Tensor) -> Tensor:
        """[P - q]+ for every slot."""
        return norm(left - self.original)


class BonusElsewhere(Rejection):
    """The bonus after a fully accepted path is drawn at another temperature."""

    def bonus(self, random: RandomSource, left: Tensor, everything: Tensor) -> Tensor:
        """A draw from the squared law."""
        return random.categorical(torch.where(everything[:, None], norm(left**2), left))


# --- Residual, retry, truncation ------------------------------------------------------------------------


class CorrectionFromTarget(Rejection):
    """After a refusal the token is drawn from p again."""

    def rest(self, left: Tensor, q: Tensor, token: Tensor, root: Tensor) -> Tensor:
        """No residual."""
        return left


class CorrectionWithout(Rejection):
    """After a refusal the token is drawn from p without the refused one."""

    def rest(self, left: Tensor, q: Tensor, token: Tensor, root: Tensor) -> Tensor:
        """p without the token."""
        return without(left, token)


class LastResidual(Rejection):
    """After several refusals the residual is that of the last one alone."""

    def rest(self, left: Tensor, q: Tensor, token: Tensor, root: Tensor) -> Tensor:
        """[p - q]+ of the original p."""
        return norm(root - q)


class FreshDraft(Rejection):
    """After a refusal a second draft is tested against the original p; one residual at the end."""

    def rest(self, left: Tensor, q: Tensor, token: Tensor, root: Tensor) -> Tensor:
        """Nothing is updated until the bonus."""
        self.q = q
        return left

    def bonus(self, random: RandomSource, left: Tensor, everything: Tensor) -> Tensor:
        """The residual of one refusal, unless the slot was accepted or there was none."""
        q = getattr(self, "q", torch.zeros_like(left))
        return random.categorical(torch.where(everything[:, None], left, norm(left - q)))


class DropsCorrection(Rejection):
    """A correction is thrown away when something was accepted: it is drafted anew."""

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The last accepted token takes the place of the bonus."""
        verdict = super().verify(tree, laws, random)
        dropped = (verdict.length > 0) & (verdict.length < tree.levels)
        return shortened(tree, verdict, torch.where(dropped, verdict.length - 1, verdict.length))


class DropsBonus(Rejection):
    """The bonus after a fully accepted path is thrown away: allowed."""

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The last accepted token takes the place of the bonus."""
        verdict = super().verify(tree, laws, random)
        dropped = (verdict.length > 0) & (verdict.length == tree.levels)
        return shortened(tree, verdict, torch.where(dropped, verdict.length - 1, verdict.length))


class RoundsDown(Rejection):
    """The number of accepted tokens is rounded down to an even one."""

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """An even number of tokens, at least one."""
        verdict = super().verify(tree, laws, random)
        even = (verdict.length - verdict.length % 2).clamp(min=0)
        return shortened(tree, verdict, even)


class CutAtShortest(Rejection):
    """A batch is cut at its shortest row; a longer row draws the token after the cut from p."""

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The row's own verdict on a chain, cut where a neighbour with the same laws was refused."""
        p = laws.all
        verdict = super().verify(tree, laws, random)
        length, bonus = verdict.length, verdict.bonus
        cut = torch.zeros_like(length, dtype=torch.bool)
        unneeded = torch.zeros_like(p[:, 0])
        unneeded[:, 0] = 1.0  # a draw that is not needed has one outcome
        for level in range(tree.levels):
            longer = (verdict.length > level) & ~cut
            chance = torch.minimum(p[:, level], self.recorded(tree, level + 1)).sum(1)  # of the neighbour's token
            ends = longer & ~random.bernoulli(torch.where(longer, chance.clamp(max=1), 1.0))
            anew = random.categorical(torch.where(ends[:, None], p[:, level], unneeded))
            length, bonus, cut = length.where(~ends, level), anew.where(ends, bonus), cut | ends
        kept = torch.arange(tree.levels) < length[:, None]
        return Verdict(verdict.path.where(kept, -1), length, bonus)


def shortened(tree: TokenTree, verdict: Verdict, length: Tensor) -> Verdict:
    """The verdict cut to `length` accepted tokens; the token after them becomes the bonus."""
    emitted = verdict.emitted(tree)
    levels = torch.arange(tree.levels)
    return Verdict(
        path=verdict.path.where(levels < length[:, None], -1),
        length=length,
        bonus=emitted.gather(1, length[:, None])[:, 0],
    )


class MatchRedraws:
    """Match, but a target token that no child has is thrown away and drawn again."""

    lossless = True
    needs = Needs()

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """One level."""
        p = laws.all
        token = random.categorical(p[:, 0])  # [B]
        if not tree.levels:
            return Verdict(path=tree.parent[:, :0], length=torch.zeros_like(token), bonus=token)
        return to_first((tree.tokens[:, 1:] == token[:, None]) & tree.valid[:, 1:], p, random)


def to_first(hits: Tensor, p: Tensor, random: RandomSource) -> Verdict:
    """A path to the first of the root's children that is hit [B, N - 1], and a bonus drawn after it."""
    hit, child = hits.any(1), hits.int().argmax(1) + 1
    node = child.where(hit, 0)
    bonus = random.categorical(p.gather(1, node[:, None, None].expand_as(p[:, :1]))[:, 0])
    return Verdict(path=child.where(hit, -1)[:, None], length=hit.long(), bonus=bonus)


# --- Randomness -----------------------------------------------------------------------------------------


class SharedWithDraft(Rejection):
    """Drafter and verifier in one: the draft's uniform serves the acceptance test or the residual, too."""

    taps: frozenset[str] = frozenset()
    promise = Promise(frozenset({IID}), nodes=2)

    def __init__(self, share_test: bool, q: Tensor = Q) -> None:
        self.q = q
        self.share_test = share_test

    def bind(self, target: Any) -> None:
        """Needs nothing of the target."""

    def propose(self, root: Tensor, tree: Any, context: Context) -> TokenTree:
        """A chain of one, drawn by inverse cdf."""
        self.uniform = LazyUniform(context.random, len(root))
        q = self.q.expand(len(root), -1)
        return path(root, self.uniform.inverse_cdf(q)[:, None], q)

    def open(self, slots: int, room: int) -> None:
        """Carries nothing."""

    def commit(self, committed: Committed) -> None:
        """Carries nothing."""

    def keep(self, rows: Tensor) -> None:
        """Carries nothing."""

    def coin(self, random: RandomSource, slot: int, share: Tensor) -> Tensor:
        """The acceptance test."""
        return self.uniform.less_than(share) if self.share_test else random.bernoulli(share)

    def bonus(self, random: RandomSource, left: Tensor, everything: Tensor) -> Tensor:
        """The residual by inverse cdf of the draft's uniform, unless only the test shares it."""
        if self.share_test or not hasattr(self, "uniform"):
            return random.categorical(left)
        fresh = random.categorical(torch.where(everything[:, None], left, one_hot(left)))
        return torch.where(
            everything, fresh, self.uniform.inverse_cdf(torch.where(everything[:, None], one_hot(left), left))
        )


def one_hot(left: Tensor) -> Tensor:
    """A law without a choice, for rows whose draw is not used."""
    sure = torch.zeros_like(left)
    sure[:, 0] = 1.0
    return sure


class ResidualFromTest(Rejection):
    """The residual is drawn with the acceptance uniform."""

    def coin(self, random: RandomSource, slot: int, share: Tensor) -> Tensor:
        """The acceptance test, its number remembered."""
        self.uniform = LazyUniform(random, len(share))
        return self.uniform.less_than(share)

    def bonus(self, random: RandomSource, left: Tensor, everything: Tensor) -> Tensor:
        """By inverse cdf of the remembered number where the slot was refused."""
        if not hasattr(self, "uniform"):
            return random.categorical(left)
        fresh = random.categorical(torch.where(everything[:, None], left, one_hot(left)))
        reused = self.uniform.inverse_cdf(torch.where(everything[:, None], one_hot(left), left))
        return torch.where(everything, fresh, reused)


class OneCoinPerNode(Rejection):
    """One uniform for all siblings of a node, with sampled laws."""

    def enter(self, random: RandomSource, rows: Tensor) -> None:
        """A new number."""
        if rows.all():
            self.uniform = LazyUniform(random, len(rows))
        self.uniform.renew(rows)

    def coin(self, random: RandomSource, slot: int, share: Tensor) -> Tensor:
        """The node's number against the slot's share."""
        return self.uniform.less_than(share)


class LongerOfTwo(Rejection):
    """Two independent chains are verified separately and the longer one is kept."""

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """Each of the two slots under the root with a test of its own."""
        p = laws.all
        if not tree.levels:
            return super().verify(tree, laws, random)
        q, root = self.recorded(tree, 1), p[:, 0]
        hits, tokens = [], []
        for slot in (1, 2):
            token = tree.tokens[:, slot, None]
            hits.append(random.bernoulli(self.share(root, q, token).clamp(max=1)))
            tokens.append(slot)
        hit = hits[0] | hits[1]
        node = torch.where(hits[0], 1, 2).where(hit, 0)
        after = p.gather(1, node[:, None, None].expand_as(p[:, :1]))[:, 0]
        bonus = random.categorical(torch.where(hit[:, None], after, norm(root - q)))
        return Verdict(path=node.where(hit, -1)[:, None], length=hit.long(), bonus=bonus)


class DrawPerPath(Rejection):
    """A target token per path instead of per node, as in Medusa's nucleus code; the longest match is kept."""

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """Two one-node paths under the root, the token after the kept one drawn anew."""
        p = laws.all
        drawn = torch.stack([random.categorical(p[:, 0]) for _ in range(max(1, tree.levels * 2))], 1)
        if not tree.levels:
            return Verdict(path=tree.parent[:, :0], length=torch.zeros_like(drawn[:, 0]), bonus=drawn[:, 0])
        return to_first(drawn == tree.tokens[:, 1:], p, random)


class OneCoinPerRequest(Rejection):
    """Drafter and verifier in one: the acceptance uniform of a slot is drawn once per request."""

    taps: frozenset[str] = frozenset()
    promise = Promise(frozenset({IID}), nodes=2)

    def __init__(self, q: Tensor = Q3) -> None:
        self.drafts = Drafts(recorded(one, IID), q)
        self.uniform: LazyUniform | None = None

    def bind(self, target: Any) -> None:
        """Needs nothing of the target."""

    def propose(self, root: Tensor, tree: Any, context: Context) -> TokenTree:
        """A fresh draw."""
        return self.drafts.propose(root, tree, context)

    def open(self, slots: int, room: int) -> None:
        """Forgets earlier requests."""
        self.uniform = None

    def commit(self, committed: Committed) -> None:
        """Carries nothing."""

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows' numbers."""
        if self.uniform is not None:
            self.uniform.keep(rows)

    def coin(self, random: RandomSource, slot: int, share: Tensor) -> Tensor:
        """The request's number against the slot's share."""
        if self.uniform is None:
            self.uniform = LazyUniform(random, len(share))
        return self.uniform.less_than(share)
