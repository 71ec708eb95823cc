"""Token Recycling: proposes each token's most probable successors from the target's latest scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count, pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from specframe.components.drafters.text import gained
from specframe.components.drafters.trie import Trie, as_tree
from specframe.kernel.capabilities import Promise
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import NeuralTarget, Target, TreePolicy
from specframe.kernel.types import Committed, Context, Cycle, Draw, TokenTree

PRIOR = (0.45, 0.13, 0.07, 0.05, 0.03, 0.02, 0.015, 0.01)
"""Prior acceptance frequency of each rank, before any tokens of a text are counted."""
TRUST = 20
"""Weight of the prior, as a number of observations."""


class Successors:
    """The adjacency matrix of Token Recycling (Luo et al. 2024) for one row, and each rank's hit counts.

    The successors of a token are the target's most probable next tokens at the token's latest scored occurrence.
    """

    def __init__(self, ranks: int = len(PRIOR)) -> None:
        self._after: dict[int, list[int]] = {}
        self._right = [0] * ranks
        self._asked = 0

    def __getitem__(self, token: int) -> list[int]:
        """The token's successors, the likeliest first; empty for a token that was never scored."""
        return self._after.get(token, [])

    def judge(self, text: Sequence[int]) -> None:
        """Counts the rank of each token of a text among the successors of the preceding token."""
        for before, token in pairwise(text):
            known = self._after.get(before)
            if known is not None:
                self._asked += 1
                if token in known:
                    self._right[known.index(token)] += 1

    def replace(self, tokens: Sequence[int], successors: Sequence[list[int]]) -> None:
        """Overwrites the successors of each token; for repeated tokens the last entry wins."""
        self._after.update(zip(tokens, successors, strict=True))

    def frequencies(self) -> list[float]:
        """Returns the acceptance frequency of each rank, from the counts and the prior."""
        asked = self._asked + TRUST
        return [(right + TRUST * prior) / asked for right, prior in zip(self._right, PRIOR, strict=False)]

    def fill(self, trie: Trie, *, nodes: int, floor: float) -> None:
        """Adds the likeliest nodes to a draft until it has `nodes` of them, the root included.

        A node's path probability is the product of the rank frequencies along its path; nodes below `floor` are left
        out. Children that the draft already has are kept, and nodes are added below them.
        """
        frequencies = self.frequencies()
        arrivals = count()
        waiting: list[tuple[float, int, int, int]] = []  # minus the path probability, arrival, parent, token

        def offer(node: int, probability: float) -> None:
            for frequency, token in zip(frequencies, self[trie.tokens[node]], strict=False):
                if probability * frequency >= floor:
                    heappush(waiting, (-probability * frequency, next(arrivals), node, token))

        offer(0, 1.0)
        while waiting and len(trie) < nodes:
            probability, _, node, token = heappop(waiting)
            offer(trie.add(node, token, -probability), -probability)


Scored = Literal["all", "path"]
"""Nodes whose scores are stored: all scored nodes, or only the root and the accepted path."""
CHUNK = 128
"""Prompt positions whose logits are computed at once."""
FOLD = 64
"""Number of rows into which a vocabulary is folded to find its largest logits."""


class Recycling:
    """Proposes after every token the target's most probable next tokens at that token's latest scored occurrence.

    The tree takes the most probable paths until it has `nodes` nodes. A path's probability is the product of its ranks'
    acceptance frequencies in this text. The paper grows a fixed tree of 80 nodes and starts empty; this drafter limits
    the tree to nodes worth scoring and starts with the prompt's scores, which the target's own head computes from its
    features at the last occurrence of each token.

    Source: Token Recycling (Luo et al. 2024, arXiv 2408.08696).

    Options:
                nodes: the largest number of nodes of a tree, the root included
        ranks: number of successors stored per token, at most 8
        floor: the smallest path probability of a proposed node
        scored: whether successors are learnt from all scored nodes or only from the accepted path
        prompt: whether the prompt's scores are used, which needs a target with an LM head
    """

    def __init__(
        self, *, nodes: int = 32, ranks: int = 8, floor: float = 0.01, scored: Scored = "all", prompt: bool = True
    ) -> None:
        if nodes < 1 or not 0 < floor <= 1:
            raise InputError(f"recycling needs nodes of at least 1 and floor above 0, got {nodes} and {floor:g}")
        if not 1 <= ranks <= len(PRIOR):
            raise InputError(f"ranks must be 1 to {len(PRIOR)}, not {ranks}")
        self.nodes = nodes
        self.floor = floor
        self.ranks = ranks
        self.scored = scored
        self.promise = Promise(frozenset({Draw.TOP}), nodes, nodes - 1 if ranks == 1 else None)
        self.taps: frozenset[str] = frozenset({"last"} if prompt else ())
        self._rows: list[Successors] = []
        self._head: Callable[[Tensor], Tensor] | None = None

    def bind(self, target: Target) -> None:
        """Shares the target's head and asks for its last features. Raises CompositionError if it has none."""
        if not self.taps:
            return
        if not isinstance(target, NeuralTarget):
            raise CompositionError("reading the prompt's scores needs a target with an LM head; set `prompt: false`")
        target.request(self.taps)
        self._head = target.head

    def open(self, slots: int, room: int) -> None:
        """Forgets every row."""
        self._rows = []

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The likeliest paths below root [B]; rows with fewer of them end in invalid nodes."""
        tries = [Trie(token) for token in root.tolist()]
        self.fill(tries)
        return as_tree(root, tries, context.costs)

    def commit(self, committed: Committed) -> None:
        """Adds new rows, with the scores of their prompts."""
        if committed.prompt is None:
            return
        for index, text in enumerate(gained(committed)):
            row = Successors(self.ranks)
            if self._head is not None:
                last = {token: place for place, token in enumerate(text[:-1])}
                places = torch.tensor(list(last.values()), device=committed.tokens.device)
                features = committed.features["last"][index].index_select(0, places)  # [distinct tokens, D]
                for chunk, tokens in zip(features.split(CHUNK), torch.tensor(list(last)).split(CHUNK), strict=True):
                    row.replace(tokens.tolist(), self._likeliest(self._head(chunk)))
            self._rows.append(row)

    def observe(self, cycle: Cycle) -> None:
        """Learns from a cycle's scores: first the hit counts of the ranks, then the successors of the scored tokens.

        If a token was scored several times, the accepted path wins, then the shallower node, then the lower index.
        """
        if cycle.committed.prompt is not None:
            return  # the prompt's scores come with the commit
        tree = cycle.draft
        tokens = tree.tokens.tolist()
        paths = [[0, *(node for node in path if node > 0)] for path in cycle.verdict.path.tolist()]
        for row, known, text in zip(self._rows, tokens, gained(cycle.committed), strict=True):
            row.judge([known[0], *text])
        visits, found = paths, self._of_nodes(cycle.scores.logits, paths)
        if self.scored == "all":
            parents, valid = tree.parent.tolist(), tree.valid.tolist()
            visits = [[*_deepest_first(*row), *path] for *row, path in zip(parents, valid, paths, strict=True)]
        for row, known, nodes, likeliest in zip(self._rows, tokens, visits, found, strict=True):
            row.replace([known[node] for node in nodes], [likeliest[node] for node in nodes])

    def fill(self, tries: Sequence[Trie]) -> None:
        """Adds the likeliest nodes to each row's draft, up to `nodes` of them (see `Successors.fill`)."""
        for row, trie in zip(self._rows, tries, strict=True):
            row.fill(trie, nodes=self.nodes, floor=self.floor)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._rows = [self._rows[row] for row in rows.tolist()]

    def _of_nodes(self, logits: Tensor, paths: list[list[int]]) -> list[Mapping[int, list[int]]]:
        """The likeliest tokens after each row's nodes, by node: for all nodes, or only for those on the paths."""
        if self.scored == "all":
            return [dict(enumerate(row)) for row in self._likeliest(logits)]
        width = max(map(len, paths))
        nodes = torch.tensor([path + [0] * (width - len(path)) for path in paths], device=logits.device)
        along = logits.gather(1, nodes[..., None].expand(-1, -1, logits.shape[-1]))  # [B, width, V]
        return [dict(zip(path, row, strict=False)) for path, row in zip(paths, self._likeliest(along), strict=True)]

    def _likeliest(self, logits: Tensor) -> list[Any]:
        """The most probable tokens, on the host: [..., V] -> nested lists [..., ranks]."""
        return top_ids(logits, min(self.ranks, logits.shape[-1])).tolist()


def top_ids(logits: Tensor, k: int) -> Tensor:
    """The ids of the k largest logits, the largest first: [..., V] -> [..., k].

    A large vocabulary is folded into FOLD rows first. The k columns with the largest maxima contain the k largest
    logits; finding them takes a quarter of the time of sorting all.
    """
    size = logits.shape[-1]
    if size % FOLD or size // FOLD < FOLD:
        return logits.topk(k).indices
    folded = logits.unflatten(-1, (FOLD, -1))  # [..., FOLD, V / FOLD]
    columns = folded.amax(-2).topk(k).indices  # [..., k]
    candidates = folded.gather(-1, columns[..., None, :].expand(*columns.shape[:-1], FOLD, k))
    best = candidates.flatten(-2).topk(k).indices  # [..., k], row times k plus column
    return best // k * (size // FOLD) + columns.gather(-1, best % k)


def _deepest_first(parents: list[int], valid: list[bool]) -> list[int]:
    """The valid nodes by descending depth, then by descending index."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return sorted((node for node, real in enumerate(valid) if real), key=lambda node: (-depths[node], -node))
