"""Sampling as components see it: where random numbers come from, and where logits become distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from specframe.kernel.tree import TokenTree


class RandomSource(Protocol):
    """The only source of random numbers while decoding: B rows, one independent stream per row.

    A component draws only what it is about to use, since a certificate branches on every element drawn.
    """

    def categorical(self, probs: Tensor) -> Tensor:
        """One index per law: probs [B, ..., V] -> [B, ...] int64. Never an index of probability 0."""

    def bernoulli(self, p: Tensor) -> Tensor:
        """One Bernoulli draw per probability: p [B, ...] in [0, 1] -> [B, ...] bool. Never True for p = 0."""

    def without_replacement(self, probs: Tensor, k: int) -> Tensor:
        """k indices in draw order: probs [B, ..., V] -> [B, ..., k] int64; -1 once the mass is used up."""


class Streams(Protocol):
    """A session's random streams; `SeededRandom` in production, an enumerator in a certificate."""

    @property
    def draft(self) -> RandomSource:
        """The drafter's noise, independent of the verifier's."""
        ...

    @property
    def verify(self) -> RandomSource:
        """The verifier's noise."""
        ...

    @property
    def position(self) -> RandomSource:
        """The noise of a verifier that draws one token for each position of the text."""
        ...

    def start(self, seeds: Sequence[int]) -> Self:
        """The streams of new rows, not yet joined to these."""
        ...

    def join(self, new: Self) -> None:
        """Puts the streams of new rows after these."""
        ...

    def advance(self, count: Tensor, most: int) -> None:
        """Ends a cycle that committed count [B] tokens, `most` at most: fresh noise in every stream."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Keeps the streams of these rows, int64 [R], in this order."""
        ...


class SamplingRule(Protocol):
    """The one place where logits become laws, for target and drafter alike."""

    @property
    def processors(self) -> Sequence[object]:
        """The rows' logits processors, which need logits over the whole vocabulary; without any, a part is enough."""
        ...

    def law(self, logits: Tensor, tree: TokenTree, nodes: Tensor | None = None) -> Tensor:
        """The law after each node: logits [B, M, V] of nodes [B, M] (None: all of the tree's) -> [B, M, V].

        Temperature 0 gives a one-hot law. Processors that look at history see the committed tokens
        and the node's own path.
        """


class Laws(Protocol):
    """The target's laws after the nodes of a draft, each computed on demand."""

    @property
    def all(self) -> Tensor:
        """The laws after all nodes, p [B, N, V]."""
        ...

    def after(self, nodes: Tensor) -> Tensor:
        """The law after one node of each row, nodes [B] -> [B, V]."""

    def logits(self, nodes: Tensor) -> Tensor:
        """The logits that the law is made from, nodes [B] -> [B, V]: the target's own, whatever the temperature."""

    def features(self, tap: str) -> Tensor:
        """The target's features at the nodes, [B, N, D], of a tap that the verifier declares.

        Raises KeyError for another tap, and for root-only drafts, where there is nothing to verify.
        """
