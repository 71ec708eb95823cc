"""The bottom-up rule: a node gets a second chance when nothing below it was accepted."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.verifiers.match import Match
from specframe.components.verifiers.record import Record
from specframe.components.verifiers.waves import Waves
from specframe.kernel.interfaces import RandomSource
from specframe.kernel.types import ALL_DRAWS, TokenTree, Verdict


class Traversal:
    """Traversal verification: emits more than Recursive from the same tree, because subtrees are tried first.

    Let a be the probability with which a node has to be accepted, given its token (the root: 1), and P
    the target's law there. Slot x of law Q is entered with min(1, a P(x) / Q(x)). If nothing below it is
    accepted, [a P - Q]+ is left, of mass S; normalised it is the new P, and a becomes S / (S + 1 - a). After
    the last slot the node itself is accepted with what a has become, and its bonus drawn from P.

    Chance has a part in the acceptances alone. So the whole tree is judged first, level by level and
    sibling by sibling, and then one draw over the nodes in post-order says where the path ends. It costs
    about one sweep over the vocabulary per drafted node, wherever the path ends.

    Besides exact laws it needs fresh noise in every slot, also between branches; a tree policy's `exact`
    promises both. A tree without q is all `top`: there the rule is Match's. On a chain it is Block's.

    Source: traversal verification for speculative tree decoding (Weng et al., 2025, arXiv 2505.12398).
    """

    lossless = True
    accepts = ALL_DRAWS
    needs_exact = True

    def verify(self, tree: TokenTree, p: Tensor, random: RandomSource) -> Verdict:
        """The accepted path and the bonus, given the target's law after every node, p [B, N, V]."""
        if tree.q is None or tree.q_row is None:
            return Match().verify(tree, p, random)
        batch, count, vocab = p.shape
        laws = p.reshape(batch * count, vocab)
        record = Record(tree, tree.q.to(p.dtype), tree.q_row)
        waves = Waves.of(tree, record.elder.sum(-1))
        first = torch.arange(0, batch * count, count, device=p.device)  # [B], the roots
        accept = p.new_zeros(batch * count)  # a of every node reached; 0 where there is none
        accept[first] = 1
        left = laws.index_select(0, waves.inner)  # [I, V], soon a P of every node with children
        for parents, siblings in waves.levels:
            nodes, rest = waves.inner[parents], left[parents]  # [M], [M, V], a view
            rest *= accept[nodes, None]
            for slots in siblings:  # [m], of the first m parents
                nodes, rest = nodes[: len(slots)], rest[: len(slots)]
                drawn = record.laws(slots)
                accept[slots] = (rest.gather(1, drawn.token) / drawn.chance)[:, 0].clamp(max=1)
                mass = drawn.subtract_from(rest)  # [m]
                accept[nodes], scale = remaining(accept[nodes], mass)
                rest /= scale[:, None]
        node = last_accepted(accept.view(batch, count), post_order(tree, record.elder), random)  # [B]
        law = laws.index_select(0, first + node)
        place = waves.place.gather(1, node[:, None])  # [B, 1]
        if len(left):
            law = left.index_select(0, place.clamp(min=0)[:, 0]).where(place >= 0, law)
        return Verdict(*path_to(tree, node), draw_bonus(law, laws.index_select(0, first + node), random))


def remaining(accept: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """What a becomes when a slot was refused that left `mass`, and what to divide the rest of a P by.

    Both are 0 / 0 only where the slot could not be refused: there a becomes 0, and nobody asks.
    """
    scale = (mass + (1 - accept)).clamp(min=torch.finfo(mass.dtype).tiny)
    return (mass / scale).clamp(max=1), scale


def last_accepted(accept: Tensor, position: Tensor, random: RandomSource) -> Tensor:
    """The first node of all in order of `position` whose coin of probability `accept` comes up, [B, N] -> [B].

    The root has the last position, and its coin always comes up.
    """
    order = position.argsort(1)
    chance = accept.double().gather(1, order)
    chance[:, -1] = 1
    before = torch.nn.functional.pad(1 - chance[:, :-1], (1, 0), value=1).cumprod(1)
    # In index order, which padding behind a row's nodes leaves alone: in a certificate rows follow scripts of options.
    return random.categorical(torch.zeros_like(chance).scatter(1, order, chance * before))


def post_order(tree: TokenTree, elder: Tensor) -> Tensor:
    """Where each node comes when children come before their parents, siblings in slot order: [B, N]."""
    size = tree.ancestors.sum(1)  # [B, N], nodes at or below
    before = (elder * size[:, None]).sum(-1)  # nodes at or below earlier siblings
    return (tree.ancestors * before[:, None]).sum(-1) + size - 1


def path_to(tree: TokenTree, node: Tensor) -> tuple[Tensor, Tensor]:
    """The path from below the root to the nodes [B], as a Verdict has it, and its length: [B, A], [B]."""
    above = tree.ancestors.gather(1, node[:, None, None].expand_as(tree.ancestors[:, :1]))[:, 0]  # [B, N]
    level = (tree.depth - 1).where(above & (tree.depth > 0), tree.levels)  # the last column takes the others
    index = torch.arange(tree.tokens.shape[1], device=node.device).expand_as(level)
    path = node.new_full((len(node), tree.levels + 1), -1).scatter_(1, level, index)
    return path[:, :-1], above.sum(1) - 1


def draw_bonus(left: Tensor, law: Tensor, random: RandomSource) -> Tensor:
    """A draw from left [B, V], normalised, or from law where rounding has left nothing: [B]."""
    mass = left.sum(-1, keepdim=True)
    return random.categorical(torch.where(mass > torch.finfo(left.dtype).tiny, left / mass, law))
