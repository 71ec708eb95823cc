"""The instance whose errors are known, and the plain pieces that traps are made of."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specframe.kernel.capabilities import Needs, Promise
from specframe.kernel.interfaces import Target, TreePolicy
from specframe.kernel.sampling import Laws, RandomSource
from specframe.kernel.types import ALL_DRAWS, Committed, Context, Draw, TokenTree, Verdict

IID, WOR, TOP = Draw.IID, Draw.WITHOUT_REPLACEMENT, Draw.TOP


def law(*weights: float) -> Tensor:
    """A law in float64."""
    return torch.tensor(weights, dtype=torch.float64)


P, Q = law(0.1, 0.2, 0.3, 0.4), law(0.4, 0.3, 0.2, 0.1)
P3, Q3 = law(0.5, 0.3, 0.2), law(0.2, 0.3, 0.5)

Make = Callable[[Tensor, RandomSource, Tensor], TokenTree]
"""A draft below root [B], drawn from q [B, V]."""


class Drafts:
    """A drafter that makes its own trees from one context-free law."""

    taps: frozenset[str] = frozenset()
    promise = Promise(ALL_DRAWS, nodes=8)

    def __init__(self, make: Make, q: Tensor = Q) -> None:
        self.make = make
        self.q = q

    def bind(self, target: Target) -> None:
        """Needs nothing of the target."""

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The tree that `make` makes."""
        return self.make(root, context.random, self.q.expand(len(root), -1))

    def open(self, slots: int, room: int) -> None:
        """Carries nothing."""

    def commit(self, committed: Committed) -> None:
        """Carries nothing."""

    def keep(self, rows: Tensor) -> None:
        """Carries nothing."""


def star(
    root: Tensor,
    tokens: Tensor,
    draw: Draw | list[Draw],
    laws: Tensor,
    rows: list[int] | None = None,
    valid: Tensor | None = None,
) -> TokenTree:
    """A tree of one level: tokens [B, k] below root [B], drawn from laws [B, P, V] or [B, V]."""
    batch, k = tokens.shape
    laws = laws if laws.dim() == 3 else laws[:, None]
    draws = torch.tensor(draw if isinstance(draw, list) else [draw] * k)
    return TokenTree(
        tokens=torch.cat([root[:, None], tokens.clamp(min=0)], 1),
        parent=torch.tensor([-1] + [0] * k).expand(batch, -1),
        valid=torch.cat([torch.ones(batch, 1, dtype=torch.bool), tokens >= 0 if valid is None else valid], 1),
        draw=torch.cat([torch.tensor([0]), draws]).expand(batch, -1),
        levels=1,
        q=laws,
        q_row=torch.tensor([0] + (rows or [0] * k)).expand(batch, -1),
    )


def path(root: Tensor, tokens: Tensor, laws: Tensor, draw: Draw = IID, valid: Tensor | None = None) -> TokenTree:
    """A chain: tokens [B, g] one below the other, each drawn from the same law [B, V]."""
    batch, g = tokens.shape
    return TokenTree(
        tokens=torch.cat([root[:, None], tokens], 1),
        parent=torch.arange(-1, g).expand(batch, -1),
        valid=torch.cat([torch.ones(batch, 1, dtype=torch.bool), tokens >= 0 if valid is None else valid], 1),
        draw=torch.full((batch, g + 1), int(draw)),
        levels=g,
        q=laws[:, None],
        q_row=torch.zeros(batch, g + 1, dtype=torch.int64),
    )


def draw_iid(random: RandomSource, q: Tensor, k: int) -> Tensor:
    """k independent draws: [B, V] -> [B, k]."""
    return random.categorical(q[:, None].expand(-1, k, -1))


def by(tokens: Tensor, score: Tensor) -> Tensor:
    """The tokens [B, k] reordered by their entry of score [B, V], largest first."""
    return tokens.gather(1, score.gather(1, tokens).argsort(dim=1, descending=True, stable=True))


def without(q: Tensor, tokens: Tensor) -> Tensor:
    """q [B, V] with tokens [B, k] removed, renormalised."""
    rest = q.scatter(1, tokens, 0.0)
    return rest / rest.sum(-1, keepdim=True)


def norm(excess: Tensor) -> Tensor:
    """The positive part as a law, [B, V]; uniform where nothing is left and nothing will be used."""
    excess = excess.clamp(min=0)
    mass = excess.sum(-1, keepdim=True)
    return torch.where(mass > 1e-15, excess / mass.clamp(min=1e-300), 1.0 / excess.shape[-1])


class Rejection:
    """Recursive rejection, written a second time and open at every joint: traps replace one method.

    `left` is what remains of the target's law.
    """

    lossless = True
    needs = Needs(exact=True)

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The verdict, in one pass over the nodes: a node's children come after it."""
        p = laws.all
        batch, count, self.vocab = p.shape
        tree = tree.whole(self.vocab)
        node = torch.zeros(batch, dtype=torch.int64)
        length = torch.zeros_like(node)
        left = p[:, 0]
        chosen = torch.full((batch, tree.levels + 1), -1)  # the last column takes what is not accepted
        self.enter(random, torch.ones(batch, dtype=torch.bool))
        for slot in range(1, count):
            trying = tree.valid[:, slot] & (tree.parent[:, slot] == node)
            token, q = tree.tokens[:, slot, None], self.recorded(tree, slot)
            share = self.share(left, q, token).clamp(0, 1)
            hit = self.coin(random, slot, torch.where(trying, share, 0.0)) & trying
            left = torch.where((trying & ~hit)[:, None], self.rest(left, q, token, p[:, 0]), left)
            left = torch.where(hit[:, None], p[:, slot], left)
            chosen.scatter_(1, length.where(hit, tree.levels)[:, None], slot)
            node, length = node.where(~hit, slot), length + hit
            self.enter(random, hit)
        everything = (length == tree.levels) & (tree.levels > 0)
        path = chosen[:, :-1].where(torch.arange(tree.levels) < length[:, None], -1)
        return Verdict(path=path, length=length, bonus=self.bonus(random, left, everything))

    def enter(self, random: RandomSource, rows: Tensor) -> None:
        """Called before the slots of a node are tried, in these rows [B] bool."""

    def recorded(self, tree: TokenTree, slot: int) -> Tensor:
        """The law that the tree records for a slot: [B, V]."""
        token = tree.tokens[:, slot, None]
        if tree.q is None or tree.q_row is None:
            return torch.zeros(len(token), self.vocab, dtype=torch.float64).scatter(1, token, 1.0)
        row = tree.q_row[:, slot]
        q = tree.q.gather(1, row[:, None, None].expand_as(tree.q[:, :1]))[:, 0]
        one_hot = torch.zeros_like(q).scatter(1, token, 1.0)
        earlier = (tree.parent[:, :slot] == tree.parent[:, slot, None]) & tree.valid[:, :slot]
        earlier = earlier & (tree.draw[:, :slot] == WOR) & (tree.q_row[:, :slot] == row[:, None])
        gone = torch.zeros_like(q).scatter_add(1, tree.tokens[:, :slot], earlier.to(q.dtype)) > 0
        rest = q.masked_fill(gone, 0.0)
        rest = rest / rest.sum(-1, keepdim=True).clamp(min=1e-300)
        draw = tree.draw[:, slot, None]
        return torch.where(draw == TOP, one_hot, torch.where(draw == WOR, rest, q))

    def share(self, left: Tensor, q: Tensor, token: Tensor) -> Tensor:
        """The probability of acceptance, before clamping: [B]."""
        return (left.gather(1, token) / q.gather(1, token).clamp(min=1e-300))[:, 0]

    def coin(self, random: RandomSource, slot: int, share: Tensor) -> Tensor:
        """Acceptance of the slot: [B] bool."""
        return random.bernoulli(share)

    def rest(self, left: Tensor, q: Tensor, token: Tensor, root: Tensor) -> Tensor:
        """Rest of the target's law after a refusal: [B, V]. `root` is the target's law at the root."""
        return norm(left - q)

    def bonus(self, random: RandomSource, left: Tensor, everything: Tensor) -> Tensor:
        """The token after the path. `everything` [B]: the path reached the last level."""
        return random.categorical(left)
