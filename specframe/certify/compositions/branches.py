"""A forking random source: each row of the batch follows a script of choices and discovers new branches."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.kernel.errors import SpecframeError
from specframe.kernel.sampling import RandomSource

_BITS = 16  # a script entry is (number of options << 16) | option chosen


class UnnormalisedLaw(SpecframeError):
    """Raised for a draw from an invalid law: negative, not finite, or sum != 1."""


class HiddenState(SpecframeError):
    """Raised if a replay deviates from its script: there is randomness or state outside the random source."""


@dataclass(frozen=True)
class Scripts:
    """Prefixes of branches that remain to be run, likeliest first."""

    choices: Tensor  # [R, S] int32 entries, 0 beyond length
    length: Tensor  # [R] int64
    weight: Tensor  # [R] float64, probability of the choices

    @classmethod
    def beginning(cls) -> Scripts:
        """The one empty script that every enumeration starts from."""
        return cls(
            torch.zeros(1, 0, dtype=torch.int32),
            torch.zeros(1, dtype=torch.int64),
            torch.ones(1, dtype=torch.float64),
        )

    @classmethod
    def join(cls, parts: list[Scripts]) -> Scripts:
        """Joins the parts into one batch."""
        width = max((part.choices.shape[1] for part in parts), default=0)
        choices = [torch.nn.functional.pad(part.choices, (0, width - part.choices.shape[1])) for part in parts]
        return cls(
            torch.cat(choices) if choices else torch.zeros(0, 0, dtype=torch.int32),
            torch.cat([part.length for part in parts]) if parts else torch.zeros(0, dtype=torch.int64),
            torch.cat([part.weight for part in parts]) if parts else torch.zeros(0, dtype=torch.float64),
        )

    def __len__(self) -> int:
        return len(self.length)

    @property
    def top(self) -> float:
        """The weight of the likeliest."""
        return float(self.weight[0])

    def sorted(self) -> Scripts:
        """The scripts, most likely first."""
        order = self.weight.argsort(descending=True, stable=True)
        return Scripts(self.choices[order], self.length[order], self.weight[order])

    def pieces(self, rows: int) -> list[Scripts]:
        """The scripts in batches of `rows` at most."""
        head, rest = self.split(rows)
        return [head, *rest.pieces(rows)] if len(rest) else [head]

    def split(self, count: int) -> tuple[Scripts, Scripts]:
        """The first `count`, and the others."""
        return (
            Scripts(self.choices[:count], self.length[:count], self.weight[:count]),
            Scripts(self.choices[count:], self.length[count:], self.weight[count:]),
        )


@dataclass
class _Book:
    """Log shared by all views of one enumeration's branches."""

    taken: Tensor  # [branches, S] int32, the choices made
    lost: float = 0.0


class Forks:
    """The random source of an enumeration: draws fork, and a branch has the weight of its choices.

    Every row of the batch is a branch. Options of weight 0 are ignored; a draw with a single option does not fork and
    costs nothing.
    """

    def __init__(self, scripts: Scripts, *, cut: float = 1e-13, tolerance: float = 1e-9) -> None:
        self._scripts = scripts
        self._cut = cut
        self._tolerance = tolerance
        batch = len(scripts)
        self.rows = torch.arange(batch)
        """The branch of each row of the batch, int64 [R]."""
        self._book = _Book(torch.zeros(batch, scripts.choices.shape[1] + 8, dtype=torch.int32))
        self._position = torch.zeros(batch, dtype=torch.int64)
        self._found: list[Scripts] = []
        self._replayed = torch.ones(batch, dtype=torch.float64)
        self.weight = torch.ones(batch, dtype=torch.float64)
        """The probability of each row's branch so far, float64 [rows]."""

    @property
    def lost(self) -> float:
        """The probability of options that were cut, in all branches discovered here."""
        return self._book.lost

    def of_rows(self, rows: Tensor) -> Forks:
        """A source for a batch of these branches alone, int64 [R], in this order."""
        view = copy.copy(self)
        view.rows = rows
        return view

    def categorical(self, probs: Tensor) -> Tensor:
        """One index per law, forking over all of them: probs [B, ..., V] -> [B, ...] int64."""
        laws = self._laws(probs)
        picks = [self._choose(laws[:, i]) for i in range(laws.shape[1])]
        return self._shaped(picks, probs, probs.shape[:-1])

    def bernoulli(self, p: Tensor) -> Tensor:
        """One coin per probability, forking over both sides: p [B, ...] -> [B, ...] bool."""
        heads = p.detach().to("cpu", torch.float64)
        if not bool(((heads >= -self._tolerance) & (heads <= 1 + self._tolerance)).all()):
            raise UnnormalisedLaw(
                f"bernoulli was asked for a coin of probability {_worst(heads)}: give it numbers in [0, 1]."
            )
        heads = heads.clamp(0, 1)
        laws = self._flat(torch.stack([1 - heads, heads], dim=-1))
        picks = [self._choose(laws[:, i]) for i in range(laws.shape[1])]
        return self._shaped(picks, p, p.shape).bool()

    def without_replacement(self, probs: Tensor, k: int) -> Tensor:
        """k indices in draw order, -1 once the mass is used up: probs [B, ..., V] -> [B, ..., k] int64."""
        laws = self._laws(probs)
        picks = []
        for i in range(laws.shape[1]):
            remaining = laws[:, i]
            for _ in range(k):
                total = remaining.sum(-1, keepdim=True)  # [R, 1]
                left = total > 0
                sole = torch.zeros_like(remaining)
                sole[:, 0] = 1  # nothing left to draw: a choice of one option
                pick = self._choose(torch.where(left, remaining / total.clamp(min=1e-300), sole))
                remaining = remaining.scatter(1, pick[:, None], 0.0)
                picks.append(torch.where(left[:, 0], pick, -1))
        return self._shaped(picks, probs, (*probs.shape[:-1], k))

    def whole(self) -> Scripts:
        """The complete scripts of the branches that were run."""
        return Scripts(self._book.taken[:, : max(0, int(self._position.max()))], self._position, self.weight)

    def finish(self) -> Scripts:
        """The scripts discovered on the way; raises HiddenState if a script was not followed to its end."""
        short = self._position < self._scripts.length
        if bool(short.any()):
            raise HiddenState(
                f"{int(short.sum())} of {len(short)} replays ended before their script did: fewer draws than "
                "the first time. The program has randomness or state of its own, or a row's draws depend on "
                "its batch neighbours."
            )
        drift = (self._replayed / self._scripts.weight - 1).abs()
        if len(drift) and float(drift.max()) > self._tolerance:
            raise HiddenState(
                "a replay met other distributions than the first run did (relative difference "
                f"{float(drift.max()):.3g}). The program has randomness or state of its own, or a row "
                "depends on its batch neighbours."
            )
        return Scripts.join(self._found).sorted()

    def _laws(self, probs: Tensor) -> Tensor:
        if probs.shape[-1] >= 1 << (_BITS - 1):
            raise UnnormalisedLaw(f"an enumeration takes distributions over less than {1 << (_BITS - 1)} options.")
        laws = probs.detach().to("cpu", torch.float64)
        total = laws.sum(-1)
        # a float32 law cannot sum to 1 any better than float32 can
        slack = max(self._tolerance, 8 * torch.finfo(probs.dtype).eps * probs.shape[-1] ** 0.5)
        if not bool(((total - 1).abs() <= slack).all()) or not bool((laws >= -slack).all()):
            raise UnnormalisedLaw(
                "a draw was asked for from something that is no distribution (least entry "
                f"{float(laws.min()):.6g}, sums from "
                f"{float(total.min()):.9g} to {float(total.max()):.9g}): normalise it before drawing."
            )
        laws = laws.clamp(min=0)
        return self._flat(laws / laws.sum(-1, keepdim=True))

    def _flat(self, laws: Tensor) -> Tensor:
        if len(laws) != len(self.rows):
            raise UnnormalisedLaw(
                f"a draw for {len(laws)} rows was asked for while the batch has {len(self.rows)}: "
                "the first dimension of everything drawn is the batch."
            )
        count = laws[0, ..., 0].numel() if len(laws) else 0
        return laws.reshape(len(laws), count, laws.shape[-1])

    @staticmethod
    def _shaped(picks: list[Tensor], like: Tensor, shape: tuple[int, ...] | torch.Size) -> Tensor:
        flat = torch.stack(picks, dim=1) if picks else torch.zeros(0, dtype=torch.int64)
        return flat.reshape(shape).to(like.device)

    def _choose(self, law: Tensor) -> Tensor:
        """One option per row, law [R, V] float64 -> [R] int64; forks where there are several."""
        rows = self.rows
        possible = law > self._cut  # [R, V]
        options = possible.sum(-1)  # [R]
        position, length = self._position[rows], self._scripts.length[rows]
        fresh = position >= length
        pick = law.argmax(-1)
        forking = options > 1
        if bool(forking.any()):
            pick = self._follow(possible, options, pick, position, forking & ~fresh)
            self._discover(law, possible, options, pick, position, forking & fresh)
            self._note(options, pick, forking)
        dropped = (law * ~possible).sum(-1) * self.weight[rows]
        self._book.lost += float((dropped * fresh).sum())  # cut mass is counted once, where it was met first
        self.weight[rows] *= law.gather(1, pick[:, None])[:, 0]
        self._replayed[rows] = torch.where(fresh, self._replayed[rows], self.weight[rows])
        return pick

    def _follow(self, possible: Tensor, options: Tensor, pick: Tensor, position: Tensor, scripted: Tensor) -> Tensor:
        """The options to take: the script's if there is one, else `pick`."""
        width = self._scripts.choices.shape[1]
        if not width:
            return pick
        entry = self._scripts.choices[self.rows, position.clamp(max=width - 1)]
        planned = (entry & ((1 << _BITS) - 1)).long().clamp(max=possible.shape[1] - 1)
        agreed = ((entry >> _BITS) == options) & possible.gather(1, planned[:, None])[:, 0]
        if not bool((agreed | ~scripted).all()):
            raise HiddenState(
                "a replay met a choice with other options than the first run did: the program has "
                "randomness or state of its own, or a row's draws depend on its batch neighbours."
            )
        return torch.where(scripted, planned, pick)

    def _note(self, options: Tensor, pick: Tensor, forking: Tensor) -> None:
        """Records the choices taken at a fork, for the scripts that branch off later."""
        rows = self.rows[forking]
        position = self._position[rows]
        if int(position.max()) >= self._book.taken.shape[1]:
            self._book.taken = torch.nn.functional.pad(self._book.taken, (0, self._book.taken.shape[1]))
        self._book.taken[rows, position] = ((options << _BITS) | pick)[forking].int()
        self._position[rows] += 1

    def _discover(
        self, law: Tensor, possible: Tensor, options: Tensor, pick: Tensor, position: Tensor, fresh: Tensor
    ) -> None:
        """Queues a script for every option that a row at the end of its script does not take itself."""
        others = possible & fresh[:, None]
        others = others.scatter(1, pick[:, None], False)
        local, option = others.nonzero(as_tuple=True)
        if not len(local):
            return
        rows, place = self.rows[local], position[local]
        width = int(place.max()) + 1
        choices = torch.nn.functional.pad(self._book.taken, (0, max(0, width - self._book.taken.shape[1])))[
            rows, :width
        ]
        choices[torch.arange(len(place)), place] = ((options[local] << _BITS) | option).int()
        self._found.append(Scripts(choices, place + 1, self.weight[rows] * law[local, option]))


class BranchSource:
    """The random source given to parts in a certificate: three methods only, so that it cannot be inspected.

    Any other attribute raises HiddenState, which `hasattr` and a default of `getattr` do not catch.
    """

    __slots__ = ("bernoulli", "categorical", "without_replacement")

    def __init__(self, inner: RandomSource) -> None:
        """A source that draws from another one."""
        self.categorical: Callable[[Tensor], Tensor] = lambda probs: inner.categorical(probs)
        self.bernoulli: Callable[[Tensor], Tensor] = lambda p: inner.bernoulli(p)
        self.without_replacement: Callable[[Tensor, int], Tensor] = lambda probs, k: inner.without_replacement(probs, k)

    def __getattr__(self, name: str) -> object:
        """Raises HiddenState; AttributeError for what Python itself looks up."""
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        raise HiddenState(f"a part reads `{name}` of its random source, which has three methods only: see RandomSource")


def _worst(p: Tensor) -> float:
    """The entry farthest outside of [0, 1], not-a-number first."""
    outside = torch.where(p.isnan(), torch.inf, (p - 0.5).abs())
    return float(p.flatten()[int(outside.argmax())])
