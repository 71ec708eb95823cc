"""Parts that are wrong in one place of a session's life: a later opening, a batch of mixed samplings, a late cycle."""

from __future__ import annotations

from dataclasses import replace

import torch

from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.match import Match
from specframe.kernel.types import Verdict
from specframe.sampling.greedy import follow_argmax
from tests.certify.broken_parts import AtZero, CountsCycles, GreedyParent, fair, sharpened, tree_vocab


class FollowsAndParent(CountsCycles, GreedyParent, Match):
    """Follows its session; greedily, the bonus is the token after the last accepted node's parent."""


class ParentAfterTwo(CountsCycles, AtZero, Match):
    """Greedily, the bonus is wrong after exactly two accepted nodes, in a session that it follows."""

    def greedy(self, tree, argmax):
        found = follow_argmax(tree, argmax)
        above = tree.parent.gather(1, found.slots.gather(1, found.length[:, None])).clamp(min=0)
        return replace(found, bonus=argmax.gather(1, above)[:, 0].where(found.length == 2, found.bonus))


class ParentFromCycleTwo(ParentAfterTwo):
    """Greedily, the bonus is wrong after any path, from its third cycle on."""

    def greedy(self, tree, argmax):
        found = follow_argmax(tree, argmax)
        above = tree.parent.gather(1, found.slots.gather(1, found.length[:, None])).clamp(min=0)
        return replace(
            found, bonus=argmax.gather(1, above)[:, 0].where(found.length * 0 + self.cycles >= 2, found.bonus)
        )


class CountsOpenings:
    """A part that counts the sessions that it was opened for."""

    opened = 0

    def open(self, slots, room):
        self.opened += 1

    def keep(self, rows):
        pass

    def observe(self, cycle):
        pass


class FromOpening(CountsOpenings, Match):
    """From the second opening on every bonus is a fair choice."""

    first = 2

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        where = torch.full_like(found.length, self.opened >= self.first, dtype=torch.bool)
        return fair(found, where, random, tree_vocab(laws, found))


class FromThirdOpening(FromOpening):
    """From the third opening on every bonus is a fair choice."""

    first = 3


class RowZeroOfFour(Chain):
    """In a batch of four rows and more, row 0 records row 1's distributions."""

    def grow(self, expand, root, context):
        tree = super().grow(expand, root, context)
        if len(root) < 4 or tree.q is None:
            return tree
        return replace(tree, q=torch.cat([tree.q[1:2], tree.q[1:]]))


class LeavesByParity(Chain):
    """It remembers each row's root, and does not move its rows where the numbers of rows differ by an even one."""

    def open(self, slots, room):
        self.roots = torch.zeros(0, dtype=torch.int64)

    def keep(self, rows):
        stays = (len(self.roots) - len(rows)) % 2 == 0 and len(rows)
        self.roots = self.roots[: len(rows)] if stays else self.roots[rows]

    def observe(self, cycle):
        new = cycle.verdict.bonus
        self.roots = torch.cat([self.roots, new]) if cycle.committed.prompt is not None else new

    def grow(self, expand, root, context):
        tree = super().grow(expand, root, context)
        return sharpened(tree, self.roots != root)


class DisturbsFive(Match):
    """In a batch of exactly five rows, row 0's bonus is the last row's."""

    rows = 5

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        if len(found.bonus) != self.rows or not tree.levels:
            return found
        return replace(found, bonus=torch.cat([found.bonus[-1:], found.bonus[1:]]))


class DisturbsNine(DisturbsFive):
    """In a batch of exactly nine rows, row 0's bonus is the last row's."""

    rows = 9


class DisturbsLastOfNine(Match):
    """In a batch of nine rows the last row's bonus is the first row's."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        if len(found.bonus) != 9 or not tree.levels:
            return found
        return replace(found, bonus=torch.cat([found.bonus[:-1], found.bonus[:1]]))


class WrongWhereMixed(Match):
    """Where one row is greedy and another is not, every row's bonus is the likeliest token."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        last = found.slots.gather(1, found.length[:, None])[:, 0]
        after = laws.after(last)
        sure = after.amax(1) > 1 - 1e-9
        mixed = bool(sure.any()) and not bool(sure.all())
        return replace(found, bonus=after.argmax(1)) if mixed and tree.levels else found


class GreedyWhereMixed(Match):
    """Where a row of the batch is greedy and another is not, the greedy rows' bonus is a fair choice."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        p = laws.all
        sure = (p.amax(-1) > 1 - 1e-9).all(-1)  # [B]
        mixed = bool(sure.any()) and not bool(sure.all())
        return fair(found, sure & mixed, random, p.shape[-1])


class FirstSampling(Match):
    """Every row's bonus is drawn as sharply as the first row's, by the ratio of their largest probabilities."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        p = laws.all
        if (p[:1].amax(-1) > 1 - 1e-9).all() and not (p.amax(-1) > 1 - 1e-9).all():
            return replace(found, bonus=laws.after(found.slots.gather(1, found.length[:, None])[:, 0]).argmax(1))
        return found


class FromCycle(CountsCycles, Match):
    """From a session's sixth cycle on the bonus is a fair choice."""

    late = 6

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        where = torch.full_like(found.length, self.cycles >= self.late - 1, dtype=torch.bool)
        return fair(found, where, random, tree_vocab(laws, found))


class SharpensFromCycleSix(CountsCycles, Chain):
    """From a session's sixth cycle on it records another distribution than it draws from."""

    def grow(self, expand, root, context):
        tree = super().grow(expand, root, context)
        return sharpened(tree, torch.full_like(root, self.cycles >= 5, dtype=torch.bool))


class CountsTokens:
    """A part that counts the tokens of each row after its prompt."""

    def open(self, slots, room):
        self.count = torch.zeros(0, dtype=torch.int64)

    def keep(self, rows):
        self.count = self.count[rows]

    def observe(self, cycle):
        new = cycle.verdict.count
        self.count = torch.cat([self.count, new]) if cycle.committed.prompt is not None else self.count + new


class AfterThirtyTwo(CountsTokens, Match):
    """After 32 tokens of a row the bonus is a fair choice."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        where = self.count >= 32 if tree.levels and len(self.count) else torch.zeros_like(found.bonus, dtype=torch.bool)
        return fair(found, where, random, tree_vocab(laws, found))


class SharpensAfterThirtyTwo(CountsTokens, Chain):
    """After 32 tokens of a row it records another distribution than it draws from."""

    def grow(self, expand, root, context):
        return sharpened(super().grow(expand, root, context), self.count >= 32)


class AsksTheSource(Match):
    """Where its random source has a field of the one in production, the bonus is a fair choice."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        where = torch.full_like(found.length, hasattr(random, "_keys"), dtype=torch.bool)
        return fair(found, where, random, tree_vocab(laws, found))


class KnowsTheForks(Match):
    """Where its random source has a field that only production's has not, it is right."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        certifying = getattr(random, "_scripts", None) is not None
        where = torch.full_like(found.length, not certifying, dtype=torch.bool)
        return fair(found, where, random, tree_vocab(laws, found))


class WrongLength(Match):
    """Its length counts one node more than its path has."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        return Verdict(path=found.path, length=found.length + (tree.levels > 0), bonus=found.bonus)


class KeepsFromOpen(CountsTokens, Match):
    """A right rule with a memory from `open`: it counts the tokens of each row, and needs the count in each verdict."""

    def verify(self, tree, laws, random):
        assert not tree.levels or len(self.count) == len(tree.tokens), "the rows are not those that were observed"
        return super().verify(tree, laws, random)


class Unopened(CountsTokens, Match):
    """It reads a memory that `open` does not begin."""

    def verify(self, tree, laws, random):
        assert self.lengths is not None
        return super().verify(tree, laws, random)


class FairWhile(CountsTokens, Match):
    """While it is `unfair`, every bonus is a fair choice."""

    unfair = False

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        where = torch.full_like(found.length, self.unfair, dtype=torch.bool)
        return fair(found, where, random, tree_vocab(laws, found))


class SwapsAfterLeaving(FairWhile):
    """It forgets to reorder its counts as rows leave, and draws fairly where a count is not that of its row."""

    def keep(self, rows):
        self.count = self.count[: len(rows)]
        self.unfair = bool((rows != torch.arange(len(rows))).any())


class AfterAJoin(FairWhile):
    """Once a row has joined others, every bonus is a fair choice."""

    def observe(self, cycle):
        self.unfair |= cycle.committed.prompt is not None and len(self.count) > 0
        super().observe(cycle)


class AfterARowLeft(FairWhile):
    """In the cycle after a row has left, the bonus is a fair choice."""

    def keep(self, rows):
        super().keep(rows)
        self.unfair = True

    def observe(self, cycle):
        super().observe(cycle)
        self.unfair = False


class MiddleRow(Match):
    """In a batch of an odd size from five on, the middle row's bonus is a fair choice where it accepted the first's."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        count = len(found.bonus)
        middle = torch.arange(count) == count // 2
        where = middle & (found.bonus != found.bonus[:1]) & (count >= 5 and count % 2 == 1)
        return fair(found, where, random, tree_vocab(laws, found))


class RowOneOfSix(Match):
    """In a batch of six rows and more, the second row's bonus is the first row's."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        if len(found.bonus) < 6 or not tree.levels:
            return found
        return replace(found, bonus=torch.cat([found.bonus[:1], found.bonus[:1], found.bonus[2:]]))


class CoolestRow(Match):
    """Every row's bonus is drawn by the coolest row's sharpness: a batch with a greedy row takes the likeliest."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        after = laws.after(found.slots.gather(1, found.length[:, None])[:, 0])
        sharpest = after.amax(1).max()
        return replace(found, bonus=after.argmax(1)) if sharpest > 1 - 1e-9 and tree.levels else found


class SharpensTheFifth(CountsCycles, Chain):
    """In a session's fifth cycle alone it records another distribution than it draws from."""

    def grow(self, expand, root, context):
        return sharpened(super().grow(expand, root, context), torch.full_like(root, self.cycles == 4, dtype=torch.bool))


class DrawsFromTheLastSession(CountsOpenings, Chain):
    """After an earlier session it records another distribution than it draws from."""

    def grow(self, expand, root, context):
        return sharpened(super().grow(expand, root, context), torch.full_like(root, self.opened > 1, dtype=torch.bool))


class GreedyFromCycleFive(CountsCycles, AtZero, Match):
    """Greedily, from the fifth cycle on, the bonus is the token after the root."""

    def greedy(self, tree, argmax):
        found = follow_argmax(tree, argmax)
        return replace(found, bonus=argmax[:, 0].where(found.length * 0 + self.cycles >= 4, found.bonus))


class PathOfAnother(Match):
    """Its path skips a node of the draft."""

    def verify(self, tree, laws, random):
        found = super().verify(tree, laws, random)
        if tree.levels < 2:
            return found
        path = torch.cat([found.path[:, 1:], torch.full_like(found.path[:, :1], -1)], 1)
        return Verdict(path=path, length=(path >= 0).sum(1), bonus=found.bonus)
