"""The law of the target's next token, by a drafter that needs several of its own tokens to write it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from specframe.plugin import Expand, Frontier, Proposal
from specframe_models.vocabularies.lexicon import Lexicon, Prefix
from specframe_models.vocabularies.scaffold import Scaffold


class Follow(NamedTuple):
    """Choice of prefixes to follow: the most likely of each level among those that may grow into longer tokens."""

    width: int
    """Number of prefixes followed below a node of the draft."""
    least: float
    """Minimum probability of a prefix."""


@dataclass(frozen=True)
class Beginning:
    """A prefix that is followed, below a node of the draft."""

    place: int  # index among the frontier's nodes
    prefix: Prefix
    mass: float
    node: int  # node of the scaffold


class MergedLaw:
    """Law of the target's token that is complete when tokens of the drafter are drawn one after the other.

    A prefix that is followed passes its whole mass on, and every other one ends as the token that it is by then, so no
    probability is counted twice. Prefixes that complete no token are dropped, and the rest is renormalised.
    """

    def __init__(self, lexicons: Sequence[Lexicon], follow: Follow, expand: Expand, root: Tensor) -> None:
        """Computes laws below roots [B] in the drafter's tokens, each row by its own lexicon."""
        self._lexicons = lexicons
        self._follow = follow
        self._scaffold = Scaffold(expand, root)
        self._nodes: list[dict[int, int]] = [{0: 0} for _ in lexicons]  # draft node -> scaffold node

    def expand(self, frontier: Frontier) -> Proposal:
        """Returns the logits after each frontier node of a draft: one level, with the drafter's confidence."""
        starts = self._starts(frontier)
        self._scaffold.read(starts)
        vocab, reach = self._lexicons[0].vocab, self._lexicons[0].reach
        mass = self._scaffold.law(0, starts[0][0]).new_zeros((*frontier.nodes.shape, vocab + 1))
        heads = [[Beginning(place, (), 1.0, node) for place, node in enumerate(nodes)] for nodes in starts]
        for level in range(reach):
            width = self._follow.width if level + 1 < reach else 0
            heads = [self._advance(row, own, mass[row], width) for row, own in enumerate(heads)]
            if not any(heads):
                break
            self._scaffold.read([[head.node for head in own] for own in heads])
        sure = self._scaffold.confidence(starts)
        return Proposal(mass[..., :vocab].log()[:, :, None], None if sure is None else sure[..., None])

    def _starts(self, frontier: Frontier) -> list[list[int]]:
        """Returns the scaffold's node of every frontier node."""
        tree = frontier.tree
        rows = zip(frontier.nodes.tolist(), tree.tokens.tolist(), tree.parent.tolist(), strict=True)
        return [[self._find(row, node, *columns) for node in nodes] for row, (nodes, *columns) in enumerate(rows)]

    def _find(self, row: int, node: int, tokens: Sequence[int], parents: Sequence[int]) -> int:
        known = self._nodes[row]
        if node not in known:
            parent = self._find(row, parents[node], tokens, parents)
            known[node] = self._scaffold.reach(row, parent, self._lexicons[row].spelling(tokens[node]))
        return known[node]

    def _advance(self, row: int, heads: Sequence[Beginning], mass: Tensor, width: int) -> list[Beginning]:
        """Adds the tokens that end after each head to `mass` [F, V + 1]; returns the heads of the next level."""
        laws = [self._scaffold.law(row, head.node) * head.mass for head in heads]
        found: dict[int, list[tuple[float, int, int]]] = {}
        if width:
            for index, (head, law) in enumerate(zip(heads, laws, strict=True)):
                _, longer = self._lexicons[row].endings(head.prefix)
                best = law.where(longer, 0).topk(min(width, len(law)))
                for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                    if value > 0 and value >= self._follow.least:
                        found.setdefault(head.place, []).append((-value, index, token))
        grown = []
        for place, candidates in found.items():
            for value, index, token in heapq.nsmallest(width, candidates):
                laws[index][token] = 0
                node = self._scaffold.reach(row, heads[index].node, [token])
                grown.append(Beginning(place, (*heads[index].prefix, token), -value, node))
        for head, law in zip(heads, laws, strict=True):
            into, _ = self._lexicons[row].endings(head.prefix)
            mass[head.place].index_add_(0, into, law)
        return grown
