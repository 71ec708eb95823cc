"""Traps on the drafter's side: order, duplicates, pruning, wrong recorded laws, stopping, stale noise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specframe.components.trees.fixed import Fixed
from specframe.kernel.sampling import RandomSource
from specframe.kernel.types import Context, Expand, TokenTree
from tests.certify.traps.instances import (
    IID,
    Q3,
    TOP,
    WOR,
    Drafts,
    P,
    by,
    draw_iid,
    norm,
    path,
    star,
    without,
)


def as_drawn(q: Tensor, drawn: Tensor) -> Tensor:
    """The law that each of the draws without replacement [B, k] was drawn from: [B, k, V]."""
    return torch.stack([q, *(without(q, drawn[:, : i + 1]) for i in range(drawn.shape[1] - 1))], 1)


# --- Order, duplicates, pruning -------------------------------------------------------------------------


def wor_sorted_by_q(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """Siblings sorted by q after drawing; the laws follow the new order."""
    return star(root, by(random.without_replacement(q, 2), q), WOR, q)


def wor_sorted_keeping_laws(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """The same, but each slot keeps the law it was drawn from."""
    drawn = random.without_replacement(q, 2)  # [B, 2]
    swapped = q.gather(1, drawn[:, 1:]) > q.gather(1, drawn[:, :1])  # [B, 1]
    laws = torch.stack([q, without(q, drawn[:, :1])], 1)  # [B, 2, V]
    order = torch.cat([swapped.long(), 1 - swapped.long()], 1)
    laws = laws.gather(1, order[..., None].expand_as(laws))
    return star(root, drawn.gather(1, order), IID, laws, rows=[0, 1])


def wor_sorted_by_id(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """Siblings sorted by token id, as torch.sort, unique and nonzero do silently."""
    return star(root, random.without_replacement(q, 2).sort(1).values, WOR, q)


def iid_sorted_by_q(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """Independent draws sorted by q."""
    return star(root, by(draw_iid(random, q, 2), q), IID, q)


def wor_sorted_by_p(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """Siblings reordered by the target's law, which this drafter happens to know."""
    return star(root, by(random.without_replacement(q, 2), P.expand_as(q)), WOR, q)


def shuffled(draw: Any, take: Any) -> Any:
    """Siblings in a uniformly random order."""

    def make(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
        drawn = take(random, q)
        swap = random.bernoulli(torch.full((len(root),), 0.5, dtype=torch.float64))
        return star(root, torch.where(swap[:, None], drawn.flip(1), drawn), draw, q)

    return make


def deduplicated(k: int, draw: Any) -> Any:
    """Independent draws whose duplicates are dropped."""

    def make(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
        drawn = draw_iid(random, q, k)
        again = (drawn[:, :, None] == drawn[:, None]).tril(-1).any(-1)
        return star(root, drawn, draw, q, valid=~again)

    return make


def best_two_of_three(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """Three draws, the two of larger q kept in draw order, each with the law it was drawn from."""
    drawn = random.without_replacement(q, 3)
    worst = q.gather(1, drawn).argmin(1, keepdim=True)
    return star(root, drawn, IID, as_drawn(q, drawn), rows=[0, 1, 2], valid=torch.arange(3) != worst)


class Reranked:
    """A sampled tree cut to its best nodes by cumulative q, as EAGLE-2 does with top nodes."""

    def __init__(self, keep: int) -> None:
        self.inner = Fixed(widths=[2, 2], draw=WOR)
        self.promise = self.inner.promise
        self.keep = keep

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The tree with all but the best nodes invalid."""
        tree = self.inner.grow(expand, root, context)
        assert tree.q is not None and tree.q_row is not None
        rows = tree.q_row[..., None].expand(-1, -1, tree.q.shape[-1])
        own = tree.q.gather(1, rows).gather(2, tree.tokens[..., None])[..., 0]  # [B, N] q of each token
        value = torch.where(tree.ancestors, own[:, None], 1.0)[:, :, 1:].prod(-1)[:, 1:]  # [B, N - 1]
        best = value.argsort(dim=1, descending=True, stable=True)[:, : self.keep] + 1
        kept = torch.zeros_like(tree.valid).scatter(1, best, True)
        kept[:, 0] = True
        return TokenTree(tree.tokens, tree.parent, tree.valid & kept, tree.draw, tree.levels, tree.q, tree.q_row)


def weak_dropped(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """Sampled children that q finds unlikely are dropped after they were drawn."""
    drawn = random.without_replacement(q, 2)
    return star(root, drawn, IID, as_drawn(q, drawn), rows=[0, 1], valid=q.gather(1, drawn) >= 0.25)


def weak_dropped_and_named(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """One child, dropped if unlikely, with the law of those that stay recorded."""
    drawn = draw_iid(random, q, 1)
    return star(root, drawn, IID, norm(torch.where(q >= 0.25, q, 0.0)), valid=q.gather(1, drawn) >= 0.25)


# --- Wrong recorded law ---------------------------------------------------------------------------------


def recorded(take: Any, draw: Any, law: Any = lambda q: q) -> Any:
    """Siblings taken one way and recorded as if drawn in another, from another law."""
    return lambda root, random, q: star(root, take(random, q), draw, law(q))


def top_two(random: RandomSource, q: Tensor) -> Tensor:
    """The two likeliest tokens."""
    return q.topk(2).indices


def best(random: RandomSource, q: Tensor) -> Tensor:
    """The likeliest token."""
    return q.argmax(-1, keepdim=True)


def one(random: RandomSource, q: Tensor) -> Tensor:
    """One draw."""
    return draw_iid(random, q, 1)


def two(random: RandomSource, q: Tensor) -> Tensor:
    """Two draws without replacement."""
    return random.without_replacement(q, 2)


def truncated(q: Tensor) -> Tensor:
    """q cut to its two likeliest tokens."""
    return norm(torch.where(q >= q.topk(2).values[:, 1:], q, 0.0))


def sharpened(q: Tensor) -> Tensor:
    """q at temperature 1/2."""
    return norm(q**2)


def one_truncated(random: RandomSource, q: Tensor) -> Tensor:
    """One draw from q cut to its two likeliest tokens."""
    return one(random, truncated(q))


def one_sharp(random: RandomSource, q: Tensor) -> Tensor:
    """One draw from q at temperature 1/2."""
    return one(random, norm(q**2))


def greedy_and_random(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """The likeliest token, then a draw from the others; both recorded as drawn without replacement."""
    first = q.argmax(-1, keepdim=True)
    second = random.categorical(without(q, first))[:, None]
    return star(root, torch.cat([first, second], 1), WOR, q)


def two_drafters(root: Tensor, random: RandomSource, q: Tensor, mean: bool) -> TokenTree:
    """A token from q and one from another drafter's law, each recorded with its own or with the mean law."""
    other = q.flip(1)
    tokens = torch.stack([random.categorical(q), random.categorical(other)], 1)
    laws = torch.stack([(q + other) / 2] * 2 if mean else [q, other], 1)
    return star(root, tokens, IID, laws, rows=[0, 1])


def exhausted(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """q has one token; the second slot is filled with the lowest id and recorded as uniform."""
    only = torch.zeros_like(q)
    only[:, 2] = 1.0
    uniform = torch.full_like(q, 1 / q.shape[-1])
    tokens = torch.tensor([[2, 0]]).expand(len(root), 2)
    return star(root, tokens, IID, torch.stack([only, uniform], 1), rows=[0, 1])


def iid_pair(random: RandomSource, q: Tensor) -> Tensor:
    """Two independent draws."""
    return draw_iid(random, q, 2)


def chain(k: int) -> Any:
    """A sampled chain of k, honestly recorded."""
    return lambda root, random, q: path(root, draw_iid(random, q, k), q)


# --- Stopping and selecting by looking at tokens --------------------------------------------------------


def stops_before(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """A chain of two that ends before, and without, the first token of small q."""
    drawn = draw_iid(random, q, 2)
    return path(root, drawn, q, valid=(q.gather(1, drawn) >= 0.4).cummin(1).values)


def stops_after(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """A chain of two that ends with the first token of small q: allowed."""
    drawn = draw_iid(random, q, 2)
    sure = q.gather(1, drawn[:, :1]) >= 0.4
    return path(root, drawn, q, valid=torch.cat([torch.ones_like(sure), sure], 1))


def likelier_of_two(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """Of two draws the one with the larger q alone, recorded as a draw from q."""
    return star(root, by(draw_iid(random, q, 2), q)[:, :1], IID, q)


def more_confident_drafter(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """Two drafters draw; the token its own drafter finds likelier is proposed with that drafter's law."""
    other = q.flip(1)
    a, b = random.categorical(q)[:, None], random.categorical(other)[:, None]
    first = q.gather(1, a) >= other.gather(1, b)
    return star(root, torch.where(first, a, b), IID, torch.where(first, q, other))


# --- Randomness -----------------------------------------------------------------------------------------


def foreseen(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """Half of the time the token is a draw from the target's law, which the drafter has seen; q is recorded."""
    return star(root, draw_iid(random, (q + P) / 2, 1), IID, q)


# --- Mixtures with retrieval ----------------------------------------------------------------------------


def retrieved_then_drawn(root: Tensor, random: RandomSource, q: Tensor, skip: bool) -> TokenTree:
    """The retrieved token 3, then a draw from q that is skipped when it is the same token."""
    tokens = torch.cat([torch.full_like(root, 3)[:, None], draw_iid(random, q, 1)], 1)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    valid[:, 1] = (tokens[:, 1] != 3) | (not skip)
    return star(root, tokens, [TOP, IID], q, valid=valid)


def drawn_then_retrieved(root: Tensor, random: RandomSource, q: Tensor) -> TokenTree:
    """The draw first; the retrieved token is skipped when it is the same: allowed."""
    tokens = torch.cat([draw_iid(random, q, 1), torch.full_like(root, 3)[:, None]], 1)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    valid[:, 1] = tokens[:, 0] != 3
    return star(root, tokens, [IID, TOP], q, valid=valid)


# --- Across cycles --------------------------------------------------------------------------------------


class OneNoise(Drafts):
    """The draft's noise is drawn once per request: with a context-free law, the same draft every cycle."""

    def __init__(self, q: Tensor = Q3) -> None:
        super().__init__(recorded(one, IID), q)
        self.drawn: Tensor | None = None

    def open(self, slots: int, room: int) -> None:
        """Forgets earlier requests."""
        self.drawn = None

    def propose(self, root: Tensor, tree: Any, context: Context) -> TokenTree:
        """The first cycle's tokens, ever again."""
        q = self.q.expand(len(root), -1)
        if self.drawn is None:
            self.drawn = context.random.categorical(q)[:, None]
        return path(root, self.drawn, q)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows."""
        if self.drawn is not None:
            self.drawn = self.drawn[rows]
