"""Verifiers and trees that are wrong in one place only: at a depth, in a cycle, in a batch's size, at temperature 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import one_hot

from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.block import Block
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.components.verifiers.traversal import Traversal
from specframe.sampling.greedy import follow_argmax
from specframe.sampling.lazy import AllLaws
from specframe_trees.spectr.kseq import KSeq
from specframe_trees.spectr.transport import Transport


def fair(found: Any, where: Any, random: Any, vocab: int) -> Any:
    """The verdict with a bonus that is a fair choice in some rows [B]."""
    even = torch.full((len(found.bonus), vocab), 1 / vocab, dtype=torch.float64)
    return replace(found, bonus=random.categorical(torch.where(where[:, None], even, one_hot(found.bonus, vocab))))


class AtFive(Match):
    """The bonus after exactly five accepted nodes is a fair choice."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        return fair(found, found.length == 5, random, laws.after(found.length * 0).shape[1])


class TakesAnyChildDeepDown(Match):
    """Below three accepted nodes the first child is accepted, whichever token it holds."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        last = found.slots.gather(1, found.length[:, None])
        children = (tree.parent == last) & tree.valid
        further = (found.length == 3) & children.any(1)
        if not further.any():
            return found
        child = children.byte().argmax(1)
        path = found.path.clone()
        path[further, found.length[further]] = child[further]
        law = torch.where(further[:, None], laws.after(child), one_hot(found.bonus, tree_vocab(laws, found)))
        return replace(found, path=path, length=found.length + further, bonus=random.categorical(law))


def tree_vocab(laws, found):
    return laws.after(found.length * 0).shape[1]


class RecursiveDeep(Recursive):
    """Accepted to the last level, the bonus comes from the law after the root."""

    def verify(self, tree, laws, random):
        p = laws.all
        found = super().verify(tree, laws, random)
        deep = found.length >= max(tree.levels, 3)
        law = torch.where(deep[:, None], p[:, 0], one_hot(found.bonus, p.shape[-1]).to(p))
        return replace(found, bonus=random.categorical(law))


class DrawsTheLikeliest(Chain):
    """From the third level on the likeliest token is taken, and recorded as drawn."""

    def grow(self, expand, root, context):
        tree = super().grow(expand, root, context)
        likeliest = tree.q.argmax(-1).gather(1, tree.q_row.clamp(min=0))
        return replace(tree, tokens=torch.where(tree.depth >= 3, likeliest, tree.tokens))


def sharpened(tree, where):
    """The tree with another recorded distribution in some rows [B] than it was drawn from."""
    sharp = tree.q**2 / (tree.q**2).sum(-1, keepdim=True)
    return replace(tree, q=torch.where(where[:, None, None], sharp, tree.q))


class RecordsTheParents(Chain):
    """From the third level on it records the distribution of the level before."""

    def grow(self, expand, root, context):
        tree = super().grow(expand, root, context)
        return replace(tree, q=torch.cat([tree.q[:, :2], tree.q[:, 1:-1]], 1))


class CountsCycles:
    """A part that counts a session's cycles: the one of its admission is 0."""

    def open(self, slots, room):
        self.cycles = -1

    def keep(self, rows):
        pass

    def observe(self, cycle):
        self.cycles += 1


class SharpensLate(CountsCycles, Chain):
    """From a session's fourth cycle on it records another distribution than it draws from."""

    def grow(self, expand, root, context):
        tree = super().grow(expand, root, context)
        return sharpened(tree, torch.full_like(root, self.cycles >= 3, dtype=torch.bool))


class Counting(CountsCycles, Match):
    """Counts a session's cycles."""

    def wrong(self):
        raise NotImplementedError

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        where = torch.full_like(found.length, self.wrong(), dtype=torch.bool)
        return fair(found, where, random, laws.after(found.length * 0).shape[1])


class SecondCycle(Counting):
    """The second cycle's bonus is a fair choice."""

    def wrong(self):
        return self.cycles == 1


class EveryThird(Counting):
    """Every third cycle's bonus is a fair choice."""

    def wrong(self):
        return self.cycles % 3 == 2


class AfterTheFirstPath(Counting):
    """The bonus is a fair choice once a session has accepted four nodes."""

    def open(self, slots, room):
        super().open(slots, room)
        self.accepted = 0

    def observe(self, cycle):
        super().observe(cycle)
        self.accepted += int(cycle.verdict.length.max())

    def wrong(self):
        return self.accepted >= 4


class ForRows(Recursive):
    """In a batch of exactly so many rows, the bonus is a fair choice."""

    rows = 2

    def verify(self, tree, laws, random):
        p = laws.all
        found = super().verify(tree, laws, random)
        where = torch.full_like(found.length, len(p) == self.rows and tree.levels > 0, dtype=torch.bool)
        return fair(found, where, random, p.shape[-1])


class ForThree(ForRows):
    """The same in a batch of three."""

    rows = 3


class ForFive(ForRows):
    """The same in a batch of five."""

    rows = 5


class ForEight(ForRows):
    """The same in a batch of eight."""

    rows = 8


class LastOfSeveral(Recursive):
    """The last row of several is judged by the first row's distributions."""

    def verify(self, tree, laws, random):
        p = laws.all
        return super().verify(tree, AllLaws(torch.cat([p[:-1], p[:1]]) if len(p) > 1 else p), random)


class AtZero:
    """A rule that is wrong at temperature 0 alone, where all laws are one-hot."""

    def greedy(self, tree, argmax):
        raise NotImplementedError

    def verify(self, tree, laws, random):
        most, argmax = laws.all.max(-1)
        return self.greedy(tree, argmax) if (most == 1).all() else super().verify(tree, laws, random)


class FollowsRoot(AtZero, Recursive):
    """Greedily, the bonus is the token after the root."""

    def greedy(self, tree, argmax):
        found = follow_argmax(tree, argmax)
        return type(found)(path=found.path, length=found.length, bonus=argmax[:, 0])


class FollowsTooFar(AtZero, Block):
    """Greedily, a child of the second level is accepted unseen."""

    def greedy(self, tree, argmax):
        seen = argmax.clone()
        if tree.levels > 2:
            seen[:, 2] = tree.tokens[:, 3]
        return follow_argmax(tree, seen)


class FollowsBlindly(AtZero, Traversal):
    """Greedily, the first child of the root is accepted unseen."""

    def greedy(self, tree, argmax):
        seen = argmax.clone()
        if tree.levels:
            seen[:, 0] = tree.tokens[:, 1]
        return follow_argmax(tree, seen)


class TakesRoot(AtZero, Match):
    """Greedily, the bonus after a path of one node and more is the token after the root."""

    def greedy(self, tree, argmax):
        found = follow_argmax(tree, argmax)
        tokens = found.to_host(tree).tokens
        return type(found)(path=found.path, length=found.length, bonus=torch.tensor([row[0] for row in tokens]))


class GreedyParent(AtZero):
    """Greedily, the bonus is the target's token after the last accepted node's parent."""

    def greedy(self, tree, argmax):
        found = follow_argmax(tree, argmax)
        above = tree.parent.gather(1, found.slots.gather(1, found.length[:, None])).clamp(min=0)
        return type(found)(path=found.path, length=found.length, bonus=argmax.gather(1, above)[:, 0])


class KSeqParent(GreedyParent, KSeq):
    """The rule `kseq`, wrong at temperature 0."""


class TransportParent(GreedyParent, Transport):
    """The rule `transport`, wrong at temperature 0."""


class AsksTheParent(Match):
    """Asks for the law after a node's parent from the second level on."""

    def verify(self, tree, laws, random):
        return super().verify(tree, OfParents(tree, laws), random)


class OfParents:
    """Laws of which those after deeper nodes are their parents'."""

    def __init__(self, tree, laws):
        self.tree, self.laws = tree, laws

    def after(self, nodes):
        above = self.tree.parent.gather(1, nodes[:, None])[:, 0].clamp(min=0)
        deep = self.tree.depth.gather(1, nodes[:, None])[:, 0] >= 2
        return self.laws.after(torch.where(deep, above, nodes))


class AsksTooLittle(Recursive):
    """It accepts nothing, and draws from the law after the last child."""

    def verify(self, tree, laws, random):
        last = torch.full_like(tree.tokens[:, 0], tree.tokens.shape[1] - 1)
        none = Match().verify(tree.take(torch.arange(len(last))), laws, random)
        return type(none)(none.path * 0 - 1, none.length * 0, random.categorical(laws.after(last)))


class FairBonus(Match):
    """Every bonus is a fair choice."""

    def verify(self, tree, laws, random):
        p = laws.all
        found = super().verify(tree, laws, random)
        return fair(found, found.length >= 0, random, p.shape[-1])


class KeepsRows(Chain):
    """It remembers each row's root; where another one stands, it records another distribution."""

    def open(self, slots, room):
        self.roots = torch.zeros(0, dtype=torch.int64)

    def keep(self, rows):
        self.roots = self.roots[rows]

    def observe(self, cycle):
        self.roots = cycle.verdict.bonus

    def grow(self, expand, root, context):
        tree = super().grow(expand, root, context)
        return tree if len(self.roots) < len(root) else sharpened(tree, self.roots[: len(root)] != root)


class ForgetsRows(KeepsRows):
    """The same without moving its rows as others leave."""

    def keep(self, rows):
        pass
