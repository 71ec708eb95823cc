"""Slow, literal references of the bottom-up rules, in the manner of reference.py.

They toss a coin for every node where the fast ones draw once over all nodes: the laws are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from specframe.testing.references.walks import Coins, Law, Number, Row, recorded_law


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
