"""The values that cross plugin borders: frozen, batch first, tensors all the way down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any

from specframe.kernel.lessons import Chunks as Chunks
from specframe.kernel.lessons import PairSpec as PairSpec
from specframe.kernel.lessons import Predicted as Predicted
from specframe.kernel.lessons import Student as Student
from specframe.kernel.lessons import Teacher as Teacher

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.interfaces import RandomSource, SamplingRule


class Draw(IntEnum):
    """How a node's token was chosen from its parent's law q; stored per node in `TokenTree.draw`."""

    TOP = 0
    """Deterministic given the context: top-k, n-grams, caches. Its law is one-hot."""
    IID = 1
    """An independent draw from q; duplicates among siblings stay."""
    WITHOUT_REPLACEMENT = 2
    """Drawn from q without the earlier siblings that were drawn this way from the same row of q, renormalised.

    Siblings of another draw, or from another row, take nothing away. Siblings stand in draw order."""


ALL_DRAWS = frozenset(Draw)


@dataclass(frozen=True)
class Prompts:
    """The prompts of a batch, right-padded with 0."""

    tokens: Tensor  # [B, L] int64
    count: Tensor  # [B] int64, tokens of each row, at least 1


@dataclass(frozen=True)
class TokenTree:
    """A draft: node 0 is the root, the last committed token; parents come before their children.

    Sibling order is index order and means something: it is the order in which the verifier tries the
    siblings. Nodes with `valid` False are padding; an invalid node never has valid children.
    """

    tokens: Tensor  # [B, N] int64
    parent: Tensor  # [B, N] int64; parent[:, 0] = -1, otherwise parent < own index
    valid: Tensor  # [B, N] bool
    draw: Tensor  # [B, N] int64, a Draw per node; the root's is meaningless
    levels: int  # no node lies deeper than this, padding included (a host number: loops need no device read)
    q: Tensor | None = None  # [B, P, V] laws the sampled nodes were drawn from
    q_row: Tensor | None = None  # [B, N] int64, row of q that the node's siblings came from

    @cached_property
    def ancestors(self) -> Tensor:
        """Which nodes a node sees, itself and its ancestors: [B, N, N] bool, [b, i, j] = j above or at i."""
        batch, count = self.tokens.shape
        own = self.tokens.new_ones(count).diag().bool()  # [N, N]
        rows = self.parent.clamp(min=0)[:, :, None].expand(batch, count, count)
        seen = own.expand(batch, count, count)
        for _ in range(self.levels):
            seen = seen.gather(1, rows) | own  # [B, N, N]
        return seen

    @cached_property
    def depth(self) -> Tensor:
        """The number of edges between the root and each node: [B, N] int64."""
        return self.ancestors.sum(-1) - 1

    def take(self, rows: Tensor) -> TokenTree:
        """The trees of these rows of the batch, int64 [R], in this order."""
        parts = {name: getattr(self, name)[rows] for name in ("tokens", "parent", "valid", "draw")}
        q = None if self.q is None else self.q[rows]
        q_row = None if self.q_row is None else self.q_row[rows]
        return TokenTree(**parts, levels=self.levels, q=q, q_row=q_row)

    def merge(self, other: TokenTree, nodes: int | None = None) -> TokenTree:
        """This tree with the nodes of another `top` tree below the same root, common prefixes being one node.

        This tree's nodes keep their indices; what is new of the other tree follows in its order, so far as a row then
        has at most `nodes` of them, the root included. Sampled nodes stay what they are: nothing is merged into them,
        because a sampled node that another tree replaced or removed would no longer have its recorded law. Raises
        ValueError if the other tree has sampled nodes.
        """
        from specframe.kernel.recipes.merge import merge  # it makes trees itself

        return merge(self, other, nodes)

    def graft(self, leaves: Sequence[int], chains: Sequence[Sequence[int]], nodes: int | None = None) -> TokenTree:
        """This tree with a chain of `top` nodes below node `leaves[row]` of each row, `nodes` nodes at most then."""
        from specframe.kernel.recipes.merge import graft

        return graft(self, leaves, chains, nodes)

    @classmethod
    def root_only(cls, root: Tensor) -> TokenTree:
        """A tree of the root alone, for root [B]: verifying it is plain autoregressive decoding."""
        tokens = root[:, None]
        return cls(
            tokens=tokens,
            parent=tokens.new_full(tokens.shape, -1),
            valid=tokens.new_ones(tokens.shape).bool(),
            draw=tokens.new_zeros(tokens.shape),
            levels=0,
        )


@dataclass(frozen=True)
class Scores:
    """What one target forward gives for every node of a tree."""

    logits: Tensor  # [B, N, V], raw; the law is made from them by Sampling alone
    features: Mapping[str, Tensor]  # tap -> [B, N, D]


@dataclass(frozen=True)
class HostVerdict:
    """A verdict on the host, row by row."""

    paths: list[list[int]]  # the nodes accepted, from level 1 down
    tokens: list[list[int]]  # the tokens committed, path then bonus


@dataclass(frozen=True)
class Verdict:
    """The outcome of verification: an accepted path below the root, and the bonus token after it."""

    path: Tensor  # [B, A] int64 node indices from level 1 down, -1 padded
    length: Tensor  # [B] int64, nodes accepted; 0 .. A
    bonus: Tensor  # [B] int64, the token that follows the path
    _emitted: Tensor | None = field(default=None, init=False, repr=False, compare=False)
    _on_host: HostVerdict | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, host: HostVerdict, tree: TokenTree) -> Verdict:
        """The verdict on a tree that was found on the host, its tensors made where the tree's are."""
        width = tree.levels
        rows = tree.tokens.new_tensor(
            [
                [*path, *[-1] * (width - len(path)), *tokens, *[0] * (width - len(path)), len(path), tokens[-1]]
                for path, tokens in zip(host.paths, host.tokens, strict=True)
            ]
        )  # [B, A + (A + 1) + 1 + 1]
        verdict = cls(path=rows[:, :width], length=rows[:, -2], bonus=rows[:, -1])
        object.__setattr__(verdict, "_emitted", rows[:, width:-2])
        object.__setattr__(verdict, "_on_host", host)
        return verdict

    @cached_property
    def count(self) -> Tensor:
        """Tokens committed by the cycle, the bonus included: [B] int64."""
        return self.length + 1

    @cached_property
    def slots(self) -> Tensor:
        """The nodes that stay, the root and the path: [B, A + 1] int64, -1 padded."""
        from_root = self.path.new_zeros(len(self.path), self.path.shape[1] + 1)
        from_root[:, 1:] = self.path
        return from_root

    def emitted(self, tree: TokenTree) -> Tensor:
        """The tokens committed, path then bonus: [B, A + 1] int64, 0 beyond `count`."""
        if self._emitted is not None:
            return self._emitted
        width = self.path.shape[1]
        tokens = tree.tokens.new_zeros(len(self.path), width + 1)
        if width:
            tokens[:, :width] = tree.tokens.gather(1, self.path.clamp(min=0)) * (self.path >= 0)
        emitted = tokens.scatter(1, self.length[:, None], self.bonus[:, None])
        object.__setattr__(self, "_emitted", emitted)
        return emitted

    def to_host(self, tree: TokenTree) -> HostVerdict:
        """The same on the host; the first call makes the one copy of a cycle."""
        if self._on_host is not None:
            return self._on_host
        width = self.path.shape[1]
        rows = self.path.new_zeros(len(self.path), 2 * width + 1)
        rows[:, :width] = self.path
        rows[:, width:] = self.emitted(tree)
        host = HostVerdict([], [])
        for row in rows.tolist():
            path = [node for node in row[:width] if node >= 0]
            host.paths.append(path)
            host.tokens.append(row[width : width + len(path) + 1])
        object.__setattr__(self, "_on_host", host)
        return host


@dataclass(frozen=True)
class Committed:
    """Newly committed tokens, each with the feature of the token before it.

    `features[tap][:, i]` belongs to the token just before `tokens[:, i]`: the pair (f_i, token_(i+1)). After a cycle
    that is [f_root, f_path...] with [path..., bonus].

    An admission commits the prompts of new rows, which join the session behind its other rows: the prompt's features
    with the prompt shifted by one plus the first generated token, and the prompts themselves in `prompt`. Such a commit
    holds the new rows alone.
    """

    tokens: Tensor  # [B, M] int64, 0 beyond count
    count: Tensor  # [B] int64, at least 1
    features: Mapping[str, Tensor]  # tap -> [B, M, D]
    root: Tensor  # [B] int64, the last committed token: root of the next tree
    prompt: Prompts | None = None
    counts: list[int] | None = None  # `count` on the host, where the target has it there


@dataclass(frozen=True)
class Cycle:
    """One cycle of a session: what was drafted, scored, accepted and committed.

    An admission is a cycle of the new rows alone, over their last prompt tokens; there `committed.prompt` is set.
    """

    draft: TokenTree
    scores: Scores
    verdict: Verdict
    committed: Committed


@dataclass(frozen=True)
class Context:
    """What a draft may use in addition to the committed text."""

    sampling: SamplingRule
    random: RandomSource


@dataclass(frozen=True)
class Frontier:
    """Nodes that a tree policy wants expanded, with the tree grown so far.

    Contract: every frontier node is the root, or lies exactly K levels below a node expanded earlier
    in the same draft, where K is what that expansion proposed. The first frontier is the root alone.
    Node indices stay what they are while a tree grows.
    """

    tree: TokenTree
    nodes: Tensor  # [B, F] int64


@dataclass(frozen=True)
class Proposal:
    """The drafter's answer for the next K levels below each frontier node."""

    logits: Tensor  # [B, F, K, v], raw; a policy that samples makes the law through Sampling
    confidence: Tensor | None = None  # [B, F, K], the drafter's own estimate that a level is accepted
    support: Tensor | None = None  # [v] int64, the tokens of the logits' columns; None: the whole vocabulary
    vocab: int | None = None  # V, the size of the whole vocabulary; needed with a support, where tokens are drawn

    def tokens(self, columns: Tensor) -> Tensor:
        """The tokens that these columns of the logits stand for, [..] int64; -1 stays."""
        if self.support is None:
            return columns
        return self.support[columns.clamp(min=0)].where(columns >= 0, columns)

    @property
    def whole(self) -> Proposal:
        """The same with logits over the whole vocabulary, -inf outside the support: what tokens are drawn from.

        Raises ValueError for a support without `vocab`.
        """
        if self.support is None:
            return self
        if self.vocab is None:
            raise ValueError("a proposal with a support needs `vocab`, the size of the whole vocabulary")
        logits = self.logits.new_full((*self.logits.shape[:-1], self.vocab), -inf)
        logits[..., self.support] = self.logits
        return Proposal(logits, self.confidence)


Expand = Callable[[Frontier], Proposal]
"""A drafter's forward, as a tree policy calls it."""


@dataclass(frozen=True)
class Outcome:
    """What a contestant of the bench gave for B prompts."""

    tokens: Sequence[Sequence[int]]
    """The new tokens of each row, at most `max_new_tokens`; an end-of-sequence token is among them."""
    arrivals: Sequence[Sequence[float]]
    """When each of these tokens was there to be read, by `time.perf_counter()`."""
    figures: Callable[[], Sequence[Mapping[str, Any]]] | None = None
    """Further figures of each row for results.json; called once the time is taken, so it may take its own."""
