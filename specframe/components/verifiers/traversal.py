"""Traversal verification: a bottom-up rule that can still accept a node after all its descendants are rejected."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specframe.components.verifiers.match import Match
from specframe.components.verifiers.record import Record, TreeSlots, Waves
from specframe.kernel.capabilities import Needs
from specframe.kernel.sampling import Laws, RandomSource
from specframe.kernel.types import Draw, TokenTree, Verdict


class Traversal:
    """Traversal verification: emits more than Recursive from the same tree, because subtrees are tried first.

    Let a be the acceptance probability of a node given its token (1 for the root), and P the target's law at the node.
    A child x with law Q has acceptance probability min(1, a P(x) / Q(x)). If nothing in its subtree is accepted,
    [a P - Q]+ remains, with mass S; P becomes its normalisation and a becomes S / (S + 1 - a). After the last child
    the node itself is accepted with the resulting a, and its bonus is drawn from P.

    Only acceptances are random. All acceptance probabilities are computed first, level by level and sibling by sibling;
    then one draw over the nodes in post-order decides where the path ends. A node's last child is left out of the first
    step, as its rejection affects only the node itself, which can then only become less likely than a. The first node
    that passes with a is drawn, and only the remainder after its last child is summed: the node is kept with
    probability S / (S + 1 - a) relative to a; otherwise the next node is drawn, as in Block.

    Costs several passes over the vocabulary for every drafted node with siblings, wherever the path ends, and a few
    for each node that is drawn.

    Needs exact laws and fresh noise in every slot, also across branches; a tree policy's `exact` promises both. For
    trees without q, whose nodes are all `top`, the rule equals Match; for chains it equals Block.

    Source: Traversal verification for speculative tree decoding (Weng et al., 2025, arXiv 2505.12398).
    """

    lossless = True
    needs = Needs(exact=True)

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The accepted path and the bonus, given the target's law after every node, p [B, N, V]."""
        p = laws.all
        if tree.q is None or tree.q_row is None:
            return Match().verify(tree, laws, random)
        batch, count = tree.tokens.shape
        recorded = Record(tree, p.shape[-1], p.dtype)
        record = TreeSlots(tree, recorded)
        waves = Waves.of(tree, record.earlier.sum(-1))
        ratio = ratios(tree, p, recorded).to(p.dtype).flatten()
        first = torch.arange(0, batch * count, count, device=p.device)  # [B], the roots
        parent_index = (first[:, None] + tree.parent.clamp(min=0)).flatten()
        level = tree.depth.where(waves.only, 0).flatten()  # 0 for slots with siblings
        accept = p.new_zeros(batch * count)  # a of every node reached; 0 for the others
        accept[first] = 1
        after = p.flatten(0, 1)  # [B N, V]
        left = after.index_select(0, waves.inner)  # [I, V], becomes a P of every node with two or more children
        for depth, (parents, siblings) in enumerate(waves.levels, start=1):
            accept = torch.where(level == depth, (accept[parent_index] * ratio).clamp(max=1), accept)
            nodes, rest = waves.inner[parents], left[parents]  # [M], [M, V], a view
            rest *= accept[nodes, None]
            for slots, going in zip(siblings, [*map(len, siblings[1:]), 0], strict=False):  # of the first parents
                drawn = record.laws(slots)
                accept[slots] = (rest[: len(slots)].gather(1, drawn.token) / drawn.chance)[:, 0].clamp(max=1)
                nodes, rest = nodes[:going], rest[:going]  # this was the last slot of the others
                mass = drawn.first(going).subtract_from(rest)  # [going]
                accept[nodes], scale = remaining(accept[nodes], mass)
                rest /= scale[:, None]
        accept = accept.view(batch, count)

        def scaled_law(node: Tensor) -> Tensor:
            law = after.index_select(0, first + node) * accept.gather(1, node[:, None])
            place = waves.place.gather(1, node[:, None])  # [B, 1]
            if len(left):
                law = left.index_select(0, place.clamp(min=0)[:, 0]).where(place >= 0, law)
            return law

        node, bonus = settle(tree, after, record, accept, post_order(tree, record.earlier), scaled_law, random)
        return Verdict(*path_to(tree, node), bonus)


def settle(
    tree: TokenTree,
    laws: Tensor,
    record: TreeSlots,
    accept: Tensor,
    position: Tensor,
    scaled_law: Callable[[Tensor], Tensor],
    random: RandomSource,
) -> tuple[Tensor, Tensor]:
    """Returns the last node of the path, and the bonus: [B], [B].

    Nodes are tried in the order of `position` [B, N], the root last. `accept` [B, N] holds each node's a after all its
    slots but the last are rejected; `scaled_law` maps nodes [B] to a P at that point, [B, V]. `laws` [B * N, V] are
    the target's.
    """
    batch, count = accept.shape
    index = torch.arange(count, device=accept.device)
    first = torch.arange(0, batch * count, count, device=accept.device)
    parents = tree.parent.clamp(min=0)
    last = torch.zeros_like(parents).scatter_reduce(1, parents, index * tree.valid, "amax")  # [B, N], its last child
    asked = torch.full_like(first, -1)  # [B], the position of the node that was drawn last
    undecided = torch.ones_like(first, dtype=torch.bool)
    node = bonus = torch.zeros_like(first)
    # In a certificate every draw is a branch: a row that needs no draw gets a law with one option.
    sure = (torch.arange(laws.shape[1], device=laws.device) == 0).to(laws.dtype)
    root = (index == 0).to(accept.dtype)
    while True:  # each row has its own draws, independent of the other rows
        chance = torch.where(undecided[:, None], accept.where(position > asked[:, None], 0), root)
        node = last_accepted(chance, position, random).where(undecided, node)
        asked = position.gather(1, node[:, None])[:, 0]
        slot = last.gather(1, node[:, None])[:, 0]
        followed = slot > 0
        law = scaled_law(node)  # [B, V]
        left = law.clone()
        mass = record.laws(first + slot).subtract_from(left)
        own_chance = accept.gather(1, node[:, None])[:, 0].clamp(min=torch.finfo(accept.dtype).tiny)
        stays = remaining(own_chance, mass)[0] / own_chance
        stays = stays.where(followed & (node > 0), 1).clamp(max=1)
        passed = undecided & random.bernoulli(stays * undecided)
        rest = torch.where(passed[:, None], torch.where(followed[:, None], left, law), sure)
        bonus = draw_bonus(rest, laws.index_select(0, first + node), random).where(passed, bonus)
        undecided = undecided & ~passed
        if not undecided.any():
            return node, bonus


def ratios(tree: TokenTree, p: Tensor, record: Record) -> Tensor:
    """P(x) / Q(x) of every slot drawn from its unchanged row of q, or `top`: [B, N] float64."""
    tokens = tree.tokens.where(tree.valid, 0)
    rows = torch.arange(len(tokens), device=p.device)[:, None]
    drawn = record.chances
    given = (tree.draw == Draw.TOP) | (drawn <= 0)  # 0 cannot be: then one-hot is exact
    return p[rows, tree.parent.clamp(min=0), tokens].double() / drawn.double().masked_fill(given, 1)


def remaining(accept: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a after the rejection of a slot that left `mass`, and the divisor of the remaining P.

    Both are 0 / 0 only where the slot could not be rejected: there a becomes 0, and is never read.
    """
    scale = (mass + (1 - accept)).clamp(min=torch.finfo(mass.dtype).tiny)
    return (mass / scale).clamp(max=1), scale


def last_accepted(accept: Tensor, position: Tensor, random: RandomSource) -> Tensor:
    """The first node in the order of `position` whose coin flip of probability `accept` succeeds, [B, N] -> [B].

    The root has the last position, and its coin flip always succeeds.
    """
    order = position.argsort(1)
    chance = accept.double().gather(1, order)
    chance[:, -1] = 1
    before = torch.nn.functional.pad(1 - chance[:, :-1], (1, 0), value=1).cumprod(1)
    # In index order, which padding does not change: in a certificate each row follows a script of options.
    return random.categorical(torch.zeros_like(chance).scatter(1, order, chance * before))


def post_order(tree: TokenTree, earlier: Tensor) -> Tensor:
    """Returns each node's rank with children before their parents, siblings in slot order: [B, N]; padding has -1."""
    size = (tree.ancestors & tree.valid[..., None]).sum(1)  # [B, N], nodes at or below
    before = (earlier * size[:, None]).sum(-1)  # nodes at or below earlier siblings
    return ((tree.ancestors * before[:, None]).sum(-1) + size - 1).where(tree.valid, -1)


def path_to(tree: TokenTree, node: Tensor) -> tuple[Tensor, Tensor]:
    """The path from below the root to the nodes [B], in the format of Verdict, and its length: [B, A], [B]."""
    ancestors = tree.ancestors.gather(1, node[:, None, None].expand_as(tree.ancestors[:, :1]))[:, 0]  # [B, N]
    level = (tree.depth - 1).where(ancestors & (tree.depth > 0), tree.levels)  # the last column takes the others
    index = torch.arange(tree.tokens.shape[1], device=node.device).expand_as(level)
    path = node.new_full((len(node), tree.levels + 1), -1).scatter_(1, level, index)
    return path[:, :-1], ancestors.sum(1) - 1


def draw_bonus(left: Tensor, law: Tensor, random: RandomSource) -> Tensor:
    """Draws from left [B, V], normalised, or from law where rounding leaves no mass: [B]."""
    mass = left.sum(-1, keepdim=True)
    return random.categorical(torch.where(mass > torch.finfo(left.dtype).tiny, left / mass, law))
