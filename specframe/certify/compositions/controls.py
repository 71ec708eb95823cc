"""Negative controls: deliberately broken parts, and random streams that repeat numbers, as a captured step would.

They show that the certificate detects such defects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specframe.certify.compositions.branches import Forks
from specframe.certify.compositions.emission import Emission
from specframe.certify.compositions.enumeration import ForkedStreams
from specframe.decoding.verification import malformed
from specframe.kernel.capabilities import Needs
from specframe.kernel.errors import CompositionError
from specframe.kernel.interfaces import Observer, Verifier
from specframe.kernel.sampling import Laws, RandomSource
from specframe.kernel.types import Cycle, TokenTree, Verdict


@dataclass(frozen=True)
class Around:
    """A verifier that wraps another one."""

    inner: Verifier
    lossless = False
    needs = Needs(exact=True)

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The inner verdict."""
        return self.inner.verify(tree, laws, random)

    def open(self, slots: int, room: int) -> None:
        """Begins a session of the inner verifier, if that follows one."""
        if isinstance(self.inner, Observer):
            self.inner.open(slots, room)

    def observe(self, cycle: Cycle) -> None:
        """Lets it observe a cycle."""
        if isinstance(self.inner, Observer):
            self.inner.observe(cycle)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of it, int64 [R], in this order."""
        if isinstance(self.inner, Observer):
            self.inner.keep(rows)


class WellFormed(Around):
    """The wrapped verifier; raises CompositionError for a verdict that is not a path of valid nodes and one token."""

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The inner verdict."""
        verdict = self.inner.verify(tree, laws, random)
        if problem := malformed(tree, verdict, laws.all.shape[-1]):
            raise CompositionError(f"{type(self.inner).__name__}.verify gave no verdict: {problem}")
        return verdict


class Unprocessed:
    """Replaces a tenth of the target's law by the uniform one, as if temperature or truncation were not applied to it.

    Detectable in every composition and at every temperature.
    """

    name = "bonus drawn from an unprocessed distribution"

    def law(self, tree: TokenTree, last: Tensor, p: Tensor) -> tuple[Tensor, bool]:
        """The mixture; over a vocabulary of one token it is the law itself."""
        vocab = p.shape[-1]
        return 0.9 * p + 0.1 / vocab, vocab > 1


class Unreduced:
    """Draws from the target's law as if no draft had been rejected. Detectable if drafts differ from the target."""

    name = "residual skipped: correction drawn from the target's distribution"

    def law(self, tree: TokenTree, last: Tensor, p: Tensor) -> tuple[Tensor, bool]:
        """The law, and whether a draft was rejected that the target could have emitted."""
        refused = (tree.parent == last) & tree.valid  # [B, N]
        return p, bool((refused & (p.gather(1, tree.tokens) > 0)).any())


class Parent:
    """Uses the distribution at the parent of the last accepted node. Detectable if drafts are accepted."""

    name = "bonus drawn one node too early"

    def law(self, tree: TokenTree, last: Tensor, p: Tensor) -> tuple[Tensor, bool]:
        """The token of the last accepted node once more: certain, as a forced text makes it; p after the root."""
        again = one_hot(tree.tokens.gather(1, last)[:, 0], p.shape[-1]).to(p.dtype)
        drafted = last > 0  # [B, 1]
        return again.where(drafted, p), bool((drafted & (again != p)).any())


Wrong = Unprocessed | Unreduced | Parent
"""A wrong choice of the token after the accepted path.

`law` gives the distribution [B, V] that the token is drawn from, and whether it may differ from the right one; `last`
[B, 1] is the last accepted node, and p [B, V] the target's distribution after it.
"""
WRONG: tuple[Wrong, ...] = (Unprocessed(), Unreduced())
"""Defects with which the certificate breaks a composition to test that it notices them."""


@dataclass(frozen=True)
class WrongBonus(Around):
    """A verifier that draws a wrong bonus token."""

    wrong: Wrong
    differed: list[bool] = field(default_factory=list)
    """Flags appended as it runs: whether it had another distribution than the verifier's to draw from."""
    lossless = False

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The inner verdict with another bonus."""
        p = laws.all
        verdict = self.inner.verify(tree, laws, random)
        last = verdict.slots.gather(1, verdict.length[:, None])  # [B, 1]
        after = p.gather(1, last[..., None].expand(-1, -1, p.shape[-1]))[:, 0]  # [B, V]
        law, differs = self.wrong.law(tree, last, after)
        self.differed.append(differs)
        return Verdict(path=verdict.path, length=verdict.length, bonus=random.categorical(law).to(torch.int64))


NAME = "one cycle's random numbers used twice, as by a captured step"


class Captured:
    """The choices of a cycle, by method, call and branch, and whether they are being replayed."""

    def __init__(self, differed: list[bool]) -> None:
        """`differed` is filled as draws are replayed: whether another option had been possible, too."""
        self.choices: dict[tuple[str, int], Tensor] = {}  # [branches, C] each, -1 where a branch made none
        self.calls: Counter[str] = Counter()
        self.replaying = False
        self.differed = differed

    def turn(self) -> None:
        """Ends a cycle: its choices are replayed in the next cycle only."""
        if self.replaying:
            self.choices.clear()
        self.replaying = not self.replaying
        self.calls.clear()


class ReplayedSource:
    """A RandomSource over forks that replays captured choices if possible."""

    def __init__(self, forks: Forks, captured: Captured) -> None:
        self._forks = forks
        self._captured = captured

    def categorical(self, probs: Tensor) -> Tensor:
        """One index per law: probs [B, ..., V] -> [B, ...] int64."""
        return self._draw("categorical", probs)

    def bernoulli(self, p: Tensor) -> Tensor:
        """One coin per probability: p [B, ...] -> [B, ...] bool."""
        heads = p.double().clamp(0, 1)
        return self._draw("bernoulli", torch.stack([1 - heads, heads], -1)).bool()

    def without_replacement(self, probs: Tensor, k: int) -> Tensor:
        """k indices in draw order, as the forks give them: probs [B, ..., V] -> [B, ..., k] int64."""
        return self._forks.without_replacement(probs, k)

    def _draw(self, method: str, probs: Tensor) -> Tensor:
        captured, rows = self._captured, self._forks.rows
        call = method, captured.calls[method]
        captured.calls[method] += 1
        laws = probs.reshape(len(probs), -1, probs.shape[-1])  # [R, C, V]
        if captured.replaying and call in captured.choices:
            earlier = captured.choices[call][rows, : laws.shape[1]]  # [R, C], or fewer
            some = laws[:, : earlier.shape[1]]
            chosen = one_hot(earlier.clamp(0, probs.shape[-1] - 1), probs.shape[-1]).to(laws.dtype)
            mass = (some * chosen).sum(-1)
            again = (earlier >= 0) & (mass > 0)
            captured.differed.append(bool((again & (mass < 1 - 1e-6)).any()))
            laws = torch.cat([torch.where(again[..., None], chosen, some), laws[:, earlier.shape[1] :]], 1)
        picks = self._forks.categorical(laws)
        if not captured.replaying:
            made = picks.new_full((len(self._forks.weight), picks.shape[1]), -1)
            made[rows] = picks
            captured.choices[call] = made
        return picks.reshape(probs.shape[:-1])


class ReplayedStreams:
    """Streams of branches like `ForkedStreams`, but every second cycle gets the numbers of the one before."""

    def __init__(self, inner: ForkedStreams, captured: Captured) -> None:
        self._inner = inner
        self._captured = captured
        self.draft = self.verify = self.position = ReplayedSource(inner.live, captured)

    def start(self, seeds: Sequence[int]) -> ReplayedStreams:
        """The next branches as new rows."""
        return ReplayedStreams(self._inner.start(seeds), self._captured)

    def join(self, new: ReplayedStreams) -> None:
        """Puts the branches of new rows after these."""
        self._inner.join(new._inner)

    def advance(self, count: Tensor, most: int) -> None:
        """A new cycle."""
        self._captured.turn()

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._inner.keep(rows)


def defects() -> Iterator[tuple[str, Callable[[Callable[..., Emission], list[bool]], Emission]]]:
    """Yields the controls' defects, each with a function from an emission's maker to the broken emission.

    The list that such a function takes is filled as it runs: whether the defect made a difference.
    """
    for wrong in WRONG:
        yield wrong.name, partial(_with_wrong_bonus, wrong)
    yield NAME, _with_replayed_numbers


def _with_wrong_bonus(wrong: Wrong, make: Callable[..., Emission], differed: list[bool]) -> Emission:
    return make(broken=partial(WrongBonus, wrong=wrong, differed=differed))


def _with_replayed_numbers(make: Callable[..., Emission], differed: list[bool]) -> Emission:
    def streams(forks: Forks) -> ReplayedStreams:
        return ReplayedStreams(ForkedStreams(forks), Captured(differed))

    return replace(make(), streams=streams)
