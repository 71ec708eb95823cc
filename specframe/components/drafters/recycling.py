"""Token Recycling: each token's most probable successors, as the target scored them last, proposed again."""

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
"""Prior frequency of the token of each rank, before anything is known of a text."""
TRUST = 20
"""Number of observations that the prior is worth."""


class Successors:
    """The adjacency of Token Recycling (Luo et al. 2024) for one row, and how often each rank has been right.

    The successors of a token are the most probable tokens of the target at the last place where it was scored.
    """

    def __init__(self, ranks: int = len(PRIOR)) -> None:
        self._after: dict[int, list[int]] = {}
        self._right = [0] * ranks
        self._asked = 0

    def __getitem__(self, token: int) -> list[int]:
        """The token's successors, the likeliest first; none of a token that was never scored."""
        return self._after.get(token, [])

    def judge(self, text: Sequence[int]) -> None:
        """Counts which rank each token of a text had among the successors of the token before it."""
        for before, token in pairwise(text):
            known = self._after.get(before)
            if known is not None:
                self._asked += 1
                if token in known:
                    self._right[known.index(token)] += 1

    def replace(self, tokens: Sequence[int], successors: Sequence[list[int]]) -> None:
        """Overwrites the successors of each token; the last of equal tokens counts."""
        self._after.update(zip(tokens, successors, strict=True))

    def frequencies(self) -> list[float]:
        """Returns the frequency of the token of each rank: the counts, and the prior for a start."""
        asked = self._asked + TRUST
        return [(right + TRUST * prior) / asked for right, prior in zip(self._right, PRIOR, strict=False)]

    def fill(self, trie: Trie, *, nodes: int, floor: float) -> None:
        """Adds the likeliest nodes to a draft until it has `nodes` of them, the root included.

        A node's path probability is the product of the rank frequencies along its path; those below `floor` are left
        out. A child that the draft has already is kept and filled below.
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
"""Nodes whose scores are kept: every scored node, or the root and the accepted path alone."""
CHUNK = 128
"""Prompt positions whose logits are computed at once."""
FOLD = 64
"""Rows that a vocabulary is folded into to find its largest logits."""


class Recycling:
    """Proposes below every token the tokens that the target found likely where it last scored that token.

    The tree takes the most probable paths until it has `nodes` nodes. A path's probability is the product of how often
    the successor of each rank was right in this text. Where the paper grows a fixed tree of 80 nodes and starts empty,
    this drafter asks how many nodes are worth scoring and starts with the prompt's scores, which the target's own head
    computes from its features at the last occurrence of each token.

    Source: Token Recycling (Luo et al. 2024, arXiv 2408.08696).

    Options:
        nodes: the most nodes of a tree, the root included
        ranks: the successors kept of each token, at most 8
        floor: the smallest path probability that is proposed
        scored: whether every scored node teaches successors, or those of the accepted path alone
        prompt: whether the prompt's scores are read, which needs a target with an LM head
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
        """Learns from a cycle's scores: which ranks were right, then the successors of the scored tokens.

        Where a token was scored several times the accepted path counts, then the shallower node, then the lower index.
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
        """The likeliest tokens after each row's nodes, by node: of all nodes, or of the paths alone."""
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

    A large vocabulary is folded into FOLD rows first. The k columns with the largest maxima hold the k largest logits,
    and finding them takes a quarter of the time of a sort of all.
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
    """The valid nodes, the deepest first and of equal depth the last one."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return sorted((node for node, real in enumerate(valid) if real), key=lambda node: (-depths[node], -node))
