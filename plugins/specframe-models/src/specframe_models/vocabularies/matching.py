"""String-level exact match: another vocabulary's draft as text, split into the target's tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from specframe import CompositionError, InputError, Sampling
from specframe.plugin import (
    Committed,
    Context,
    Drafter,
    Draw,
    Expand,
    Observer,
    Promise,
    Target,
    Teacher,
    TokenTree,
    TreePolicy,
    small_form,
    text_of,
)
from specframe_models.vocabularies.lexicon import Spellings
from specframe_models.vocabularies.reading import Reading
from specframe_models.vocabularies.translator import Grown, Pair, Translator
from specframe_models.vocabularies.untrained import translated

TAIL = 4
"""Number of target tokens before a draft that are tokenised again with it, to check that they do not change."""


class Matching:
    """Proposes the text that a drafter of another vocabulary drafts, split into the target's tokens (SLEM).

    Every path of the drafter's tree becomes a text, and every text a path of the target's tokens. A draft does not
    depend on what the target would sample, so its nodes are `top`. Their probabilities are unknown: at a temperature
    above 0, a token is accepted as often as the target draws it.

    Source: Timor et al. 2025 (arXiv 2502.05202), algorithm 2.

    Options:
        drafter: a drafter that reads tokens alone, such as `model`
        tree: the tree policy that the drafter grows in its own tokens, which must not sample
        nodes: maximum number of nodes of a draft, root included; none: the tree's number
        replace: replacements in the prompt's text, so that the drafter reads its own chat format
    """

    taps: frozenset[str] = frozenset()

    def __init__(
        self, *, drafter: Drafter, tree: TreePolicy, nodes: int | None = None, replace: dict[str, str] | None = None
    ) -> None:
        if tree.promise.sampled or isinstance(tree, Observer):
            raise CompositionError("slem needs a tree policy that neither samples nor learns from earlier drafts")
        if nodes is not None and nodes < 2:
            raise InputError(f"slem needs room for at least 2 nodes, got {nodes}")
        most = nodes or tree.promise.nodes
        assert most is not None
        self.tree = tree
        self.nodes = nodes
        self.promise = Promise(frozenset({Draw.TOP}), most)
        self._most = most
        self._translator = Translator(drafter, replace, None)
        self._wrap: Callable[[Expand], Expand] | None = None

    @classmethod
    def given(cls, drafter: Drafter, pair: Pair, tree: TreePolicy, nodes: int | None = None) -> Matching:
        """Creates this drafter around one with given vocabularies of drafter and target."""
        made = cls(drafter=drafter, tree=tree, nodes=nodes)
        made._translator.given = pair
        return made

    def untrained(self, vocab: int) -> Matching:
        """Returns a copy around an untrained drafter, over two small vocabularies."""
        return Matching.given(*translated(self._translator.drafter, vocab), self.tree, self.nodes)

    def smaller(self) -> Matching:
        """Returns a copy with a smaller tree."""
        made = Matching(drafter=self._translator.drafter, tree=small_form(self.tree), replace=self._translator.replace)
        made._translator.given = self._translator.given
        return made

    @property
    def drafter(self) -> Any:
        """The drafter of another vocabulary."""
        return self._translator.drafter

    def watched(self, wrap: Callable[[Expand], Expand], wrap_search: object = None) -> Matching:
        """Returns a copy whose forward passes go through `wrap`; it has no native search to wrap."""
        twin, before = copy(self), self._wrap
        twin._wrap = wrap if before is None else lambda expand: wrap(before(expand))
        return twin

    def bind(self, target: Target) -> None:
        """Reads both vocabularies."""
        self._spellings = Spellings(*self._translator.bind(target), text_of(target).device)

    def open(self, slots: int, room: int) -> None:
        """Starts a session without rows."""
        self._translator.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns a draft below root [B] of the texts that the drafter proposes."""
        translator = self._translator
        own = Context(Sampling(temperature=1.0), context.random, context.costs)
        tree = self.tree if self._wrap is None else Grown(self.tree, self._wrap, translator.roots)
        draft = translator.drafter.propose(translator.roots, tree, own)
        rows = zip(translator.rows, draft.tokens.tolist(), draft.parent.tolist(), draft.valid.tolist(), strict=True)
        paths = [[path for drafted in leaves(*nodes) if (path := self._cut(row, drafted))] for row, *nodes in rows]
        return united(root, paths, self._most)

    def commit(self, committed: Committed) -> None:
        """Reads the committed tokens."""
        self._translator.commit(committed)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._translator.keep(rows)

    def translate(self, teacher: Teacher, answers: Tensor) -> Teacher:
        """Translates the target's answers into the drafter's tokens."""
        return self._translator.translate(teacher, answers, self._spellings.several)

    def _cut(self, row: Reading, drafted: list[int]) -> list[int]:
        """Converts a path of the drafter's tokens to the target's; empty if the text ends within a character."""
        own, other = self._translator.own, self._translator.other
        if not row.complete:
            return []
        ended = own.end in drafted
        if own.end is not None and ended:
            drafted = drafted[: drafted.index(own.end)]
        text = own.write(drafted).decode(errors="ignore")
        end = [other.end] if ended and other.end is not None else []
        tail = row.generated[-TAIL:]
        before = other.write(tail).decode(errors="ignore")
        if text and before:
            together = other.encode(before + text)[0]
            if together[: len(tail)] == tail:
                return [*together[len(tail) :], *end]
        return [*(other.encode(text)[0] if text else []), *end]


def leaves(tokens: list[int], parents: list[int], valid: list[bool]) -> Iterator[list[int]]:
    """Yields the paths of a tree's row from below the root to its leaves, as tokens, the first leaf first."""
    inner = {parent for parent, real in zip(parents, valid, strict=True) if real}
    for node, real in enumerate(valid):
        if real and node and node not in inner:
            path = []
            while node:
                path.append(tokens[node])
                node = parents[node]
            yield path[::-1]


def united(root: Tensor, rows: Sequence[Sequence[list[int]]], most: int) -> TokenTree:
    """Merges each row's paths into one tree below root [B] with shared prefixes, of at most `most` nodes per row."""
    grown = [_nodes(paths, most) for paths in rows]
    width = max(map(len, grown))
    padded = [[*nodes, *[(0, 0, 0)] * (width - len(nodes))] for nodes in grown]
    fields = torch.tensor(padded, dtype=torch.int64, device=root.device).reshape(len(rows), width, 3)
    real = torch.tensor([[place < len(nodes) for place in range(width)] for nodes in grown], device=root.device)
    tokens, parent = (
        torch.cat([root[:, None], fields[..., 0]], 1),
        torch.nn.functional.pad(fields[..., 1], (1, 0), value=-1),
    )
    valid = torch.nn.functional.pad(real.reshape(len(rows), width).bool(), (1, 0), value=True)
    levels = max((depth for nodes in grown for *_, depth in nodes), default=0)
    return TokenTree(tokens, parent, valid, torch.zeros_like(tokens), levels)


def _nodes(paths: Sequence[list[int]], most: int) -> list[tuple[int, int, int]]:
    """Returns the nodes of one row's tree below its root: token, parent, depth."""
    nodes: list[tuple[int, int, int]] = []
    children: dict[tuple[int, int], int] = {}
    for path in paths:
        parent = 0
        for depth, token in enumerate(path, 1):
            if (parent, token) not in children:
                if len(nodes) + 1 == most:
                    break
                nodes.append((token, parent, depth))
                children[parent, token] = len(nodes)
            parent = children[parent, token]
    return nodes
