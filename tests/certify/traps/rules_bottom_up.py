"""Block, traversal and K-SEQ, each written a second time and open at every joint, and broken in known ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specframe.kernel.capabilities import Promise
from specframe.kernel.sampling import Laws, RandomSource
from specframe.kernel.types import Committed, Context, TokenTree, Verdict
from specframe.testing.tables import LazyUniform
from tests.certify.traps.drafts import chain
from tests.certify.traps.instances import IID, Drafts, Q, Rejection, draw_iid, norm


def ended(tree: TokenTree, node: Tensor, bonus: Tensor) -> Verdict:
    """The verdict of a path that ends at node [B]."""
    path = torch.full((len(node), tree.levels + 1), -1)
    length = tree.depth.gather(1, node[:, None])[:, 0]
    while bool((node > 0).any()):
        level = tree.depth.gather(1, node[:, None]) - 1
        path.scatter_(1, torch.where(level < 0, tree.levels, level), node[:, None])
        node = tree.parent.gather(1, node[:, None])[:, 0].clamp(min=0)
    return Verdict(path[:, :-1], length, bonus)


# --- Block ----------------------------------------------------------------------------------------------


class Tests(Rejection):
    """Block verification of a full chain: all tests forward, the last one that is passed counts."""

    clipped = True
    stops = False

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The verdict."""
        p = laws.all
        self.vocab, depth = p.shape[-1], tree.levels
        reach = torch.ones(len(p), dtype=torch.float64)
        end, going = torch.zeros(len(p), dtype=torch.int64), torch.ones(len(p), dtype=torch.bool)
        law = p[:, 0]
        for i in range(depth + 1):
            if i:
                token, q = tree.tokens[:, i, None], self.recorded(tree, i)
                reach = reach * self.share(p[:, i - 1], q, token)
                reach = reach.clamp(max=1) if self.clipped else reach
            after = p[:, i] if i == depth else self.rest(reach[:, None] * p[:, i], self.recorded(tree, i + 1), p[:, i])
            passes = reach.clamp(max=1) if i == depth else self.passes(reach, p[:, i], self.recorded(tree, i + 1))
            hit = torch.ones_like(going) if i == 0 else self.coin(random, i, torch.where(going, passes, 0.0))
            end, law = end.where(~hit, i), torch.where(hit[:, None], after, law)
            going = going & hit if self.stops else going
        return ended(tree, end, random.categorical(law))

    def passes(self, reach: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """The probability of passing the test before the last."""
        mass = (reach[:, None] * p - q).clamp(min=0).sum(-1)
        return torch.where(mass + 1 - reach > 1e-15, mass / (mass + 1 - reach).clamp(min=1e-300), 1.0)

    def rest(self, left: Tensor, q: Tensor, p: Tensor, root: Any = None) -> Tensor:
        """The law of the correction, left = r P."""
        return norm(left - q)


class StopsAtFailure(Tests):
    """The first failed test ends the scan."""

    stops = True


class TokenResidual(Tests):
    """The correction forgets r."""

    def rest(self, left: Tensor, q: Tensor, p: Tensor, root: Any = None) -> Tensor:
        """[P - q]+."""
        return norm(p - q)


class ReachAsTest(Tests):
    """r_i in place of h_i."""

    def passes(self, reach: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """r_i."""
        return reach


class Cumulative(TokenResidual):
    """A test of the cumulated ratio that stops at the first failure, with the token rule's residual."""

    stops = True

    def passes(self, reach: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """r_i."""
        return reach


class GreedyBlock(Tests):
    """Maximum coupling on the path, without carrying the changed target into the next cycle."""

    clipped = False

    def passes(self, reach: Tensor, p: Tensor, q: Tensor) -> Tensor:
        """(min(1, rho) - m) / (1 - m), m the mass that rho P and q share."""
        shared = torch.minimum(reach[:, None] * p, q).sum(-1)
        return torch.where(shared < 1 - 1e-12, (reach.clamp(max=1) - shared) / (1 - shared).clamp(min=1e-12), 1.0)


class KeyedByPosition(Tests):
    """Drafter and verifier in one: the test of a position uses the same number in every cycle."""

    taps: frozenset[str] = frozenset()
    promise = Promise(frozenset({IID}), nodes=3)
    positions = 8

    def __init__(self, q: Tensor) -> None:
        self.drafts = Drafts(chain(2), q)
        self.uniforms: list[LazyUniform] = []

    def bind(self, target: Any) -> None:
        """Needs nothing of the target."""

    def propose(self, root: Tensor, tree: Any, context: Context) -> TokenTree:
        """A fresh chain."""
        if not self.uniforms:
            self.uniforms = [LazyUniform(context.random, len(root)) for _ in range(self.positions)]
        return self.drafts.propose(root, tree, context)

    def open(self, slots: int, room: int) -> None:
        """Forgets earlier rows."""
        self.position = torch.zeros(0, dtype=torch.int64)
        self.uniforms = []

    def commit(self, committed: Committed) -> None:
        """Counts what has been committed."""
        if committed.prompt is not None:
            self.position = torch.cat([self.position, committed.count])
        else:
            self.position = self.position + committed.count

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows' numbers."""
        self.position = self.position[rows]
        for uniform in self.uniforms:
            uniform.keep(rows)

    def coin(self, random: RandomSource, slot: int, share: Tensor) -> Tensor:
        """The position's number against the share."""
        place = (self.position + slot).clamp(max=self.positions - 1)
        hits = [u.less_than(torch.where(place == i, share, 0.0)) & (place == i) for i, u in enumerate(self.uniforms)]
        return torch.stack(hits).any(0)


# --- Traversal ------------------------------------------------------------------------------------------


class Visits(Rejection):
    """Traversal verification, node by node, of trees that have the same shape in every row."""

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The verdict."""
        p = laws.all
        self.vocab = p.shape[-1]
        self.open = torch.ones(len(p), dtype=torch.bool)
        self.end, self.law = torch.zeros(len(p), dtype=torch.int64), p[:, 0]
        self.visit(tree, p, random, 0, torch.ones(len(p), dtype=torch.float64))
        return ended(tree, self.end, random.categorical(self.law))

    def visit(self, tree: TokenTree, p: Tensor, random: RandomSource, node: int, accept: Tensor) -> None:
        """The node, after everything below it."""
        law = p[:, node]
        for child in (tree.parent[0] == node).nonzero()[:, 0].tolist():
            token, q = tree.tokens[:, child, None], self.recorded(tree, child)
            enter = (accept * self.share(law, q, token)).clamp(max=1)
            self.visit(tree, p, random, child, enter * tree.valid[:, child])
            new_accept, new_law = self.left(accept, law, q)
            refused = tree.valid[:, child]
            accept, law = torch.where(refused, new_accept, accept), torch.where(refused[:, None], new_law, law)
        accept = torch.ones_like(accept) if node == 0 else accept
        hit = random.bernoulli(torch.where(self.open, accept, 0.0))
        self.end, self.open = self.end.where(~hit, node), self.open & ~hit
        self.law = torch.where(hit[:, None], self.bonus_law(law, p[:, node]), self.law)

    def left(self, accept: Tensor, law: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """The values of a and P after a slot is refused."""
        rest = accept[:, None] * law - q
        mass = rest.clamp(min=0).sum(-1)
        return mass / (mass + 1 - accept).clamp(min=1e-300), norm(rest)

    def bonus_law(self, law: Tensor, original: Tensor) -> Tensor:
        """The law of the bonus: P as it has become."""
        return law


class FullParent(Visits):
    """The residual of a node is taken as if it were accepted for sure."""

    def left(self, accept: Tensor, law: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """a as it should be, P = norm([P - Q]+)."""
        return super().left(accept, law, q)[0], norm(law - q)


class StaleAccept(Visits):
    """a stays what it was on entering."""

    def left(self, accept: Tensor, law: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
        """P alone changes."""
        return accept, super().left(accept, law, q)[1]


class BonusFromTarget(Visits):
    """The bonus is drawn from the target's law at the node."""

    def bonus_law(self, law: Tensor, original: Tensor) -> Tensor:
        """Everything refused below is forgotten."""
        return original


# --- Several siblings -----------------------------------------------------------------------------------


class Common(Rejection):
    """K-SEQ over the two independent siblings of one level, with a given rho."""

    def __init__(self, rho: float) -> None:
        self.rho = rho

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The verdict."""
        p = laws.all
        self.vocab, law = p.shape[-1], p[:, 0]
        node = torch.zeros(len(p), dtype=torch.int64)
        if not tree.levels:
            return ended(tree, node, random.categorical(law))
        q = self.recorded(tree, 1)
        for slot in (1, 2):
            share = self.share(law, q, tree.tokens[:, slot, None]) / self.rho
            hit = random.bernoulli(torch.where(node == 0, share.clamp(max=1), 0.0))
            node = node.where(~hit, slot)
        rest = torch.where((node > 0)[:, None], p[torch.arange(len(p)), node], self.remainder(law, q))
        return ended(tree, node, random.categorical(rest))

    def remainder(self, law: Tensor, q: Tensor) -> Tensor:
        """The rest when both are refused, cut off at 0."""
        common = torch.minimum(q, law / self.rho)
        beta = common.sum(-1, keepdim=True)
        return norm(law - common * (1 - (1 - beta) ** 2) / beta)


class CommonTokenResidual(Common):
    """K-SEQ with the residual of the token rule."""

    def remainder(self, law: Tensor, q: Tensor) -> Tensor:
        """[p - q]+."""
        return norm(law - q)


class BestLooking(Common):
    """K-SEQ over two sequences; where both begin with the accepted token, the one with the likelier next token stays.

    The tree has two siblings with a child each.
    """

    looks = True

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The verdict."""
        p = laws.all
        if not tree.levels:
            return super().verify(tree, laws, random)
        rows, q, law = torch.arange(len(p)), self.recorded(tree, 1), p[:, 0]
        node = torch.zeros(len(p), dtype=torch.int64)
        for slot in (1, 2):
            share = self.share(law, q, tree.tokens[:, slot, None]) / self.rho
            node = node.where(~random.bernoulli(torch.where(node == 0, share.clamp(max=1), 0.0)), slot)
        below = q.gather(1, tree.tokens[:, 3:])  # [B, 2]
        twins = tree.tokens[:, 1] == tree.tokens[:, 2]
        kept = torch.where((node > 0) & twins, below.argmax(1) + 1, node) if self.looks else node
        child = (kept + 2).clamp(max=4)
        after = p[rows, kept]
        share = self.share(after, q, tree.tokens.gather(1, child[:, None])).clamp(max=1)
        hit = random.bernoulli(torch.where(kept > 0, share, 0.0))
        left = torch.where((kept > 0)[:, None], norm(after - q), self.remainder(law, q))
        end = torch.where(hit, child, kept)
        return ended(tree, end, random.categorical(torch.where(hit[:, None], p[rows, child], left)))


class AcceptedPath(BestLooking):
    """The same, but the accepted sequence stays: exact."""

    looks = False


class Weighed(Rejection):
    """One of two siblings, picked with weights p / q, is accepted as if it had been drawn from q."""

    honest = False

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The verdict."""
        p = laws.all
        self.vocab, law = p.shape[-1], p[:, 0]
        if not tree.levels:
            return ended(tree, tree.tokens[:, 0] * 0, random.categorical(law))
        q = self.recorded(tree, 1)
        weights = law / q
        first, second = (weights.gather(1, tree.tokens[:, slot, None])[:, 0] for slot in (1, 2))
        node = torch.where(random.bernoulli(first / (first + second)), 1, 2)
        wins = weights[:, :, None] / (weights[:, :, None] + weights[:, None])  # [B, x, y]: x is picked
        picked = (2 * q[:, :, None] * q[:, None] * wins).sum(2)
        recorded = picked if self.honest else q
        token = tree.tokens.gather(1, node[:, None])
        hit = random.bernoulli((law / recorded).gather(1, token)[:, 0].clamp(max=1))
        node = node.where(hit, 0)
        rest = torch.where(hit[:, None], p[torch.arange(len(p)), node], norm(law - recorded))
        return ended(tree, node, random.categorical(rest))


class WeighedHonestly(Weighed):
    """The same, accepted with the law of the pick: exact."""

    honest = True


def two_paths(root: Tensor, random: RandomSource, q: Tensor = Q) -> TokenTree:
    """Two independent sequences of two tokens."""
    return sequences(root, draw_iid(random, q, 4), q)


def correlated(root: Tensor, random: RandomSource, q: Tensor = Q) -> TokenTree:
    """Two independent siblings; the child of the first is the second over again, that of the second is fresh."""
    first = draw_iid(random, q, 2)
    return sequences(root, torch.cat([first, first[:, 1:], random.categorical(q)[:, None]], 1), q)


def sequences(root: Tensor, drawn: Tensor, q: Tensor) -> TokenTree:
    """Two siblings, the first two of drawn [B, 4], with the other two below them."""
    tokens = torch.cat([root[:, None], drawn], 1)
    return TokenTree(
        tokens=tokens,
        parent=torch.tensor([-1, 0, 0, 1, 2]).expand_as(tokens),
        valid=torch.ones_like(tokens, dtype=torch.bool),
        draw=torch.full_like(tokens, int(IID)),
        levels=2,
        q=q[:, None],
        q_row=torch.zeros_like(tokens),
    )
