"""Ways to spoil the frontier's tree policies, each a small broken policy, with its exact error where it is known.

`joint` is the total variation of the first two tokens on the instance P, Q of instances.py, known in advance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.components.verifiers.traversal import Traversal
from specframe.kernel.interfaces import TreePolicy, Verifier
from specframe.kernel.types import Context, Draw, Expand, TokenTree
from specframe_models.specdecpp.threshold import Threshold
from specframe_trees.beam import Beam
from specframe_trees.dyspec import DySpec
from specframe_trees.greedy import Greedy
from tests.certify.traps.instances import IID, Q


class Spoiled:
    """A policy's tree, changed after its tokens were drawn."""

    def __init__(self, policy: TreePolicy, spoil: Callable[[TokenTree], TokenTree]) -> None:
        self.policy = policy
        self.spoil = spoil
        self.promise = replace(policy.promise, draws=frozenset(Draw))

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The spoiled tree."""
        return self.spoil(self.policy.grow(expand, root, context))


def own_law(tree: TokenTree) -> Tensor:
    """The probability by q of each node's token after its parent, 1 for the root: [B, N]."""
    assert tree.q is not None and tree.q_row is not None
    q = tree.q.gather(1, tree.q_row[..., None].expand(-1, -1, tree.q.shape[-1]))
    own = q.gather(2, tree.tokens[..., None])[..., 0].where(tree.valid, 0)
    own[:, 0] = 1
    return own


def reordered(tree: TokenTree, order: Tensor) -> TokenTree:
    """The nodes in another order [B, N], which must leave parents before their children."""
    place = order.argsort(1)
    parent = tree.parent.gather(1, order)
    return replace(
        tree,
        tokens=tree.tokens.gather(1, order),
        parent=place.gather(1, parent.clamp(min=0)).where(parent >= 0, -1),
        valid=tree.valid.gather(1, order),
        draw=tree.draw.gather(1, order),
        q_row=tree.q_row.gather(1, order),
    )


def sorted_by_q(tree: TokenTree) -> TokenTree:
    """Siblings sorted by q."""
    return reordered(tree, (tree.depth - own_law(tree) / 2).argsort(dim=1, stable=True))


def recorded_independent(tree: TokenTree) -> TokenTree:
    """Every sibling recorded as a draw from q."""
    return replace(tree, draw=torch.full_like(tree.draw, IID))


def values(tree: TokenTree) -> Tensor:
    """Value of a slot once its token is known: the slot's value times its token's law, [B, N]."""
    own, count = own_law(tree), tree.tokens.shape[1]
    value = torch.ones_like(own)
    for node in range(1, count):
        left = torch.ones_like(own[:, 0])
        for earlier in range(1, node):
            left = left - own[:, earlier] * (tree.parent[:, earlier] == tree.parent[:, node])
        mass = value.gather(1, tree.parent[:, node, None])[:, 0]
        value[:, node] = mass * own[:, node] * (left > 0)
    return value * tree.valid


def best_three(tree: TokenTree) -> TokenTree:
    """The three nodes whose tokens are worth most."""
    best = values(tree)[:, 1:].argsort(dim=1, descending=True, stable=True)[:, :3] + 1
    kept = torch.zeros_like(tree.valid).scatter(1, best, True)
    kept[:, 0] = True
    return replace(tree, valid=tree.valid & kept)


def as_drawn(tree: TokenTree) -> TokenTree:
    """The same tree, every slot with the law it was drawn from, as if it had no earlier siblings."""
    laws = Q.expand(*tree.tokens.shape, -1)
    for node in range(1, tree.tokens.shape[1]):
        for earlier in range(1, node):
            gone = (tree.parent[:, earlier] == tree.parent[:, node]) & tree.valid[:, earlier]
            token = torch.nn.functional.one_hot(tree.tokens[:, earlier], Q.shape[-1]).bool() & gone[:, None]
            laws = laws.index_put((torch.arange(len(laws)), torch.tensor(node)), laws[:, node].masked_fill(token, 0))
    rows = torch.arange(tree.tokens.shape[1]).expand_as(tree.tokens)
    return replace(tree, q=laws, q_row=rows, draw=torch.full_like(tree.draw, IID))


def worth_it(threshold: float) -> Callable[[TokenTree], TokenTree]:
    """Nodes are left out if, once drawn, they are worth less than a threshold."""
    return lambda tree: replace(tree, valid=tree.valid & (values(tree) >= threshold))


def draw_last(tree: TokenTree) -> TokenTree:
    """The draw tried after the most probable token: allowed, only weaker."""
    order = torch.tensor([0, 2, 1]).expand_as(tree.tokens)
    return reordered(tree, order)


def whole_law(tree: TokenTree) -> TokenTree:
    """Every draw recorded as one from all of q."""
    return replace(tree, q=Q.expand(len(tree.tokens), tree.q.shape[1], -1))


def unlikely_dropped(tree: TokenTree) -> TokenTree:
    """The chain ends before the first token that q finds unlikely, which has been drawn."""
    sure = own_law(tree) >= 0.25
    return replace(tree, valid=tree.valid & sure.cummin(1).values)


@dataclass(frozen=True)
class DraftTrap:
    """A spoiled policy under a verifier; `joint` 0 means that it only looks spoiled, None that it is not known."""

    row: str
    what: str
    joint: float | None
    make: Callable[[], TreePolicy]
    verifier: Callable[[], Verifier] = Recursive
    wrong: bool = True
    """The policy records a law that is not the law of its token: the audit must find it."""


def beam() -> Beam:
    return Beam(width=2, depth=2)


def budget(nodes: int) -> DySpec:
    return DySpec(nodes=nodes, depth=nodes, width=nodes)


TRAPS = [
    DraftTrap("12", "a beam's siblings sorted by q", 0.1366, lambda: Spoiled(beam(), sorted_by_q)),
    DraftTrap("13", "a beam's siblings recorded as independent", 0.0464, lambda: Spoiled(beam(), recorded_independent)),
    # Known in advance is .0658, of the second of these rows with equal slots drawn deepest first; DySpec draws the
    # earlier sibling first. The error of the first token alone, .0598, is the same in either order.
    DraftTrap("13b", "DySpec's four nodes cut to the best three", 0.0727, lambda: Spoiled(budget(4), best_three)),
    DraftTrap(
        "13b, as drawn",
        "the same, every slot with the law it was drawn from",
        0.0622,
        lambda: Spoiled(budget(4), lambda tree: replace(as_drawn(tree), valid=best_three(tree).valid)),
    ),
    DraftTrap("34", "DySpec's threshold held against drawn tokens", None, lambda: Spoiled(budget(4), worth_it(0.2))),
    DraftTrap(
        "34, traversal",
        "the same, bottom-up",
        None,
        lambda: Spoiled(budget(4), worth_it(0.2)),
        Traversal,
    ),
    DraftTrap(
        "16b, greedy", "greedy's draw recorded with all of q", None, lambda: Spoiled(Greedy(widths=[2]), whole_law)
    ),
    DraftTrap(
        "30, threshold",
        "a chain that leaves out the token that made it stop",
        None,
        lambda: Spoiled(Threshold(depth=2, threshold=1.0, draw=IID), unlikely_dropped),
    ),
]

CONTROLS = [
    DraftTrap("12, match", "a sorted beam under match", 0, lambda: Spoiled(beam(), sorted_by_q), Match),
    DraftTrap("13b, match", "DySpec's best three under match", 0, lambda: Spoiled(budget(4), best_three), Match),
    DraftTrap("13b, budget", "a budget of three", 0, lambda: budget(3), wrong=False),
    DraftTrap(
        "34, before",
        "DySpec's threshold held against slots",
        0,
        lambda: DySpec(nodes=4, depth=4, width=4, threshold=0.2),
        wrong=False,
    ),
    DraftTrap(
        "greedy, last", "greedy's draw tried last", 0, lambda: Spoiled(Greedy(widths=[2]), draw_last), wrong=False
    ),
    DraftTrap("honest, beam", "a beam", 0, beam, wrong=False),
    DraftTrap("honest, traversal", "a beam, bottom-up", 0, beam, Traversal, wrong=False),
]
