"""Slow, literal versions of verifiers, to hold the fast ones against: one row, judged in plain Python numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from specframe.kernel.types import Draw, TokenTree

Number = float | Fraction
Law = Sequence[Number]


class Coins(Protocol):
    """A RandomSource for one row and plain numbers."""

    def categorical(self, law: Law) -> int:
        """An index drawn from the law."""
        ...

    def bernoulli(self, p: Number) -> bool:
        """Draws a bool that is true with this probability."""
        ...


@dataclass(frozen=True)
class Row:
    """One row of a TokenTree as lists."""

    tokens: Sequence[int]
    parent: Sequence[int]
    valid: Sequence[bool]
    draw: Sequence[int]
    q: Sequence[Law] = ()
    q_row: Sequence[int] = ()

    @classmethod
    def of(cls, tree: TokenTree, row: int) -> Row:
        """The lists of one row."""
        return cls(
            tokens=tree.tokens[row].tolist(),
            parent=tree.parent[row].tolist(),
            valid=tree.valid[row].tolist(),
            draw=tree.draw[row].tolist(),
            q=() if tree.q is None else tree.q[row].tolist(),
            q_row=() if tree.q_row is None else tree.q_row[row].tolist(),
        )

    def children(self, node: int) -> list[int]:
        """The valid children of a node, in slot order."""
        return [i for i in range(1, len(self.tokens)) if self.valid[i] and self.parent[i] == node]


def match_reference(row: Row, p: Sequence[Law], coins: Coins) -> tuple[list[int], int]:
    """The accepted path of nodes and the bonus token by the rule of `Match`."""
    path: list[int] = []
    node = 0
    while True:
        token = coins.categorical(p[node])
        same = [child for child in row.children(node) if row.tokens[child] == token]
        if not same:
            return path, token
        node = same[0]
        path.append(node)


def recursive_reference(row: Row, p: Sequence[Law], coins: Coins) -> tuple[list[int], int]:
    """The accepted path of nodes and the bonus token by the rule of `Recursive`."""
    if not row.q:
        return match_reference(row, p, coins)
    path: list[int] = []
    node = 0
    while True:
        left, accepted = p[node], None
        for child in row.children(node):
            token, q = row.tokens[child], recorded_law(row, child, len(p[node]))
            if coins.bernoulli(min(1, left[token] / q[token])):
                accepted = child
                break
            left = residual(left, q)
        if accepted is None:
            return path, coins.categorical(left)
        node = accepted
        path.append(node)


def recorded_law(row: Row, node: int, vocab: int) -> Law:
    """The law that the token of a node was drawn from, given its earlier siblings."""
    token, draw = row.tokens[node], row.draw[node]
    one_hot = [int(i == token) for i in range(vocab)]
    if draw == Draw.TOP:
        return one_hot
    law = list(row.q[row.q_row[node]])
    if draw == Draw.WITHOUT_REPLACEMENT:
        for sibling in row.children(row.parent[node]):
            if sibling < node and row.draw[sibling] == draw and row.q_row[sibling] == row.q_row[node]:
                law[row.tokens[sibling]] = 0
    if law[token] <= 0:
        return one_hot
    total = sum(law)
    return [mass / total for mass in law]


def residual(law: Law, q: Law) -> Law:
    """norm([law - q]+); the law itself where rounding has left nothing."""
    excess = [max(a - b, 0) for a, b in zip(law, q, strict=True)]
    total = sum(excess)
    return [mass / total for mass in excess] if total > 0 else law


def traversal_reference(row: Row, p: Sequence[Law], coins: Coins) -> tuple[list[int], int]:
    """The accepted path of nodes and the bonus token by the rule of `Traversal`."""

    def visit(node: int, accept: Number) -> tuple[list[int], int] | None:
        law: Law = p[node]
        for child in row.children(node):
            token, q = row.tokens[child], recorded_law(row, child, len(law))
            enter = min(1, accept * law[token] / q[token])
            if enter > 0 and (found := visit(child, enter)) is not None:
                return [child, *found[0]], found[1]
            left = [max(accept * a - b, 0) for a, b in zip(law, q, strict=True)]
            mass = sum(left)
            if mass == 0 and (node or accept < 1):
                return None
            if mass > 0:
                accept, law = mass / (mass + 1 - accept), [share / mass for share in left]
        return ([], coins.categorical(law)) if node == 0 or coins.bernoulli(accept) else None

    found = visit(0, 1)
    assert found is not None, "the root is always accepted"
    return found


def block_reference(row: Row, p: Sequence[Law], coins: Coins) -> tuple[list[int], int]:
    """The accepted path of nodes and the bonus token by the rule of `Block`, for a chain.

    All tests are made, first to last, and the last one that is passed counts.
    """
    chain = [node for node in range(1, len(row.tokens)) if row.valid[node]]
    reach: Number = 1
    longest, bonus = 0, p[0]
    for length in range(len(chain) + 1):
        if length:
            token, q = row.tokens[chain[length - 1]], recorded_law(row, chain[length - 1], len(bonus))
            reach = min(1, reach * p[chain[length - 2] if length > 1 else 0][token] / q[token])
        here = p[chain[length - 1] if length else 0]
        if length == len(chain):
            passes, law = reach, here
        else:
            q = recorded_law(row, chain[length], len(here))
            left = [max(reach * a - b, 0) for a, b in zip(here, q, strict=True)]
            mass = sum(left)
            passes = mass / (mass + 1 - reach) if mass + 1 - reach > 0 else 1
            law = [share / mass for share in left] if mass > 0 else here
        if length == 0 or coins.bernoulli(passes):
            longest, bonus = length, law
    return chain[:longest], coins.categorical(bonus)
