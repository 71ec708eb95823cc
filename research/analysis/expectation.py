"""Exact output of the rules for a given draft: sums over their coins, in float64, as the rules are on paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from specframe.components.verifiers.descent import Run
from specframe.plugin import Draw, TokenTree
from tests.components.verifiers.references import Row

Cover = Callable[[Tensor], Tensor]
"""Map from the remaining target law, [V], to the probability of each token in a run of siblings, [V]."""


class Judging(Protocol):
    """A verifier that judges siblings run by run."""

    def judge(self, left: Tensor, q: Tensor, run: Run) -> tuple[Tensor, Tensor]:
        """Chances and cover of a run, as `descend` asks for them."""
        ...


@dataclass(frozen=True)
class Draft:
    """One tree with its laws."""

    row: Row
    p: Tensor  # [N, V] float64, the target's
    q: Tensor | None  # [P, V] float64, the drafter's

    @classmethod
    def of(cls, tree: TokenTree, p: Tensor) -> Draft:
        """The only row of a tree, given the target's laws p [N, V]."""
        tree = tree.whole(p.shape[-1])
        row = Row.of(replace(tree, q=None), 0)
        return cls(row, normalised(p), None if tree.q is None else normalised(tree.q[0]))

    def slots(self, node: int) -> Iterator[tuple[int, int, Tensor]]:
        """Each child in slot order: its index, its token, and the law [V] that it was drawn from."""
        gone: list[int] = []
        for child in self.row.children(node):
            token, draw = self.row.tokens[child], self.row.draw[child]
            if self.q is None or draw == Draw.TOP:
                law = torch.zeros_like(self.p[node])
                law[token] = 1
            else:
                law = self.q[self.row.q_row[child]]
                if draw == Draw.WITHOUT_REPLACEMENT:
                    law = normalised(law.index_fill(0, torch.tensor(gone, dtype=torch.int64), 0))
                    gone.append(token)
            yield child, token, law


def expect_match(draft: Draft, node: int = 0) -> float:
    """The tokens that `match` accepts below the node, on average."""
    first: dict[int, int] = {}
    for child in draft.row.children(node):
        first.setdefault(draft.row.tokens[child], child)
    return sum(float(draft.p[node, token]) * (1 + expect_match(draft, child)) for token, child in first.items())


def expect_recursive(draft: Draft, node: int = 0) -> float:
    """The tokens that `recursive` accepts below the node, on average."""
    left, refused, length = draft.p[node], 1.0, 0.0
    for child, token, law in draft.slots(node):
        accept = min(1.0, float(left[token] / law[token]))
        if accept > 0:
            length += refused * accept * (1 + expect_recursive(draft, child))
        refused *= 1 - accept
        left = residual(left, law)
    return length


def expect_traversal(draft: Draft) -> float:
    """The tokens that `traversal` accepts, on average; on a chain that is `block`."""
    return _below(draft, 0, 1.0)[1]


def _below(draft: Draft, node: int, accept: float) -> tuple[float, float]:
    """The chance that the path ends at the node or below, and how many tokens below it holds then, times that chance.

    `accept` is the probability with which the node has to be accepted.
    """
    law, refused, length = draft.p[node], 1.0, 0.0
    for child, token, q in draft.slots(node):
        enter = min(1.0, accept * float(law[token] / q[token]))
        if enter > 0:
            chance, below = _below(draft, child, enter)
            length += refused * (chance + below)
            refused *= 1 - chance
        left = (accept * law - q).clamp(min=0)
        mass = float(left.sum())
        if mass == 0 and (node or accept < 1):
            return 1 - refused, length
        if mass > 0:
            accept, law = mass / (mass + (1 - accept)), left / mass
    return 1 - refused * (1 - accept), length


EXPECTED: dict[str, Callable[[Draft], float]] = {
    "recursive": expect_recursive,
    "block": expect_traversal,
    "traversal": expect_traversal,
    "match": expect_match,
}
"""The rules whose average is known here, by the verifiers' names."""


def accepted(p: Tensor, covers: Sequence[Cover]) -> float:
    """The probability that one of some siblings is accepted, p [V].

    Run by run it is sum min(left, cover), and norm([left - cover]+) is left of p. That holds where no run's cover
    depends on the tokens of a run before it: not for draws without replacement, past the first run.
    """
    left, refused = p, 1.0
    for cover in covers:
        covered = cover(left)
        refused *= 1 - float(torch.minimum(left, covered).sum())
        left = residual(left, covered)
    return 1 - refused


def cover_alone(law: Tensor) -> Cover:
    """One sibling covers its law [V], as in `recursive`."""
    return lambda left: law


def cover_together(verifier: Judging, q: Tensor, siblings: int, *, unreplaced: bool = False) -> Cover:
    """Returns the cover of a verifier with a run of siblings drawn from q [V]."""
    tokens = torch.zeros(1, siblings, dtype=torch.int64)
    run = Run(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.tensor([[unreplaced]]))
    return lambda left: verifier.judge(left[None], q[None], run)[1][0]


def residual(law: Tensor, q: Tensor) -> Tensor:
    """norm([law - q]+), or the law where nothing is left: [..., V]."""
    left = (law - q).clamp(min=0)
    mass = left.sum(-1, keepdim=True)
    return torch.where(mass > 0, left / mass, law)


def normalised(law: Tensor) -> Tensor:
    """The laws in float64: [..., V]."""
    return law.double() / law.double().sum(-1, keepdim=True)
