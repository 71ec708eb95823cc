"""A negative control: streams that give two cycles in a row the same numbers, as a captured step would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from specframe.certify.own.forks import Forks
from specframe.certify.own.streams import ForkedStreams

NAME = "one cycle's random numbers used twice, as by a captured step"


class Captured:
    """The choices of a cycle, by method, call and branch, and whether they are being made again."""

    def __init__(self, differed: list[bool]) -> None:
        """`differed` is filled as draws are replayed: whether another option had been possible, too."""
        self.choices: dict[tuple[str, int], Tensor] = {}  # [branches, C] each, -1 where a branch made none
        self.calls: Counter[str] = Counter()
        self.replaying = False
        self.differed = differed

    def turn(self) -> None:
        """Ends a cycle: its choices are made again in the next one, and no others after that."""
        if self.replaying:
            self.choices.clear()
        self.replaying = not self.replaying
        self.calls.clear()


class ReplayedSource:
    """A RandomSource over forks that makes a captured choice again where that is possible."""

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
        self.draft = self.verify = self.position = ReplayedSource(inner.draft, captured)

    def start(self, seeds: Sequence[int]) -> ReplayedStreams:
        """The next branches as new rows."""
        return ReplayedStreams(self._inner.start(seeds), self._captured)

    def join(self, new: ReplayedStreams) -> None:
        """Puts the branches of new rows behind these."""
        self._inner.join(new._inner)

    def advance(self, count: Tensor, most: int) -> None:
        """A new cycle."""
        self._captured.turn()

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._inner.keep(rows)
