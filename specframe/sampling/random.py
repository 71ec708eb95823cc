"""Seeded random numbers, each a pure function of where it is used.

A uniform is a SplitMix64 hash (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
2014) of seed, stream, row, cycle, method, call and element, or of seed, row and position. There is no generator state
to keep in step, so a row's numbers do not depend on its neighbours in the batch, on padding or on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specframe.sampling.hashing import places, scramble, scramble_all, signed, stride, unit

CATEGORICAL, BERNOULLI, WITHOUT_REPLACEMENT, METHODS = 0, 1, 2, 3
CYCLES, CALLS, ELEMENTS = 8, 24, 4  # size of a block: cycles, their first calls, few elements
PLACES = 64  # smallest size of a block by position


class SeededRandom:
    """The random streams of a session: for every row one for drafting, one for verification, and one by position.

    `draft`, `verify` and `position` are RandomSources. They never share a number, nor do two cycles of the first two:
    the acceptance rules are exact only for fresh noise. The numbers of `position` belong to positions in a row's text,
    so a rule that draws one token for each position emits the same text with any draft.
    """

    def __init__(self, seed: int, rows: int, device: torch.device | str = "cpu") -> None:
        """Streams for the rows 0 .. rows - 1 under one seed; any whole number is a seed."""
        self._begin([row_seed(seed, row) for row in range(rows)], device)

    @classmethod
    def of_seeds(cls, seeds: Sequence[int], device: torch.device | str = "cpu") -> SeededRandom:
        """Streams for rows with one seed each."""
        random = cls.__new__(cls)
        random._begin(seeds, device)
        return random

    def _begin(self, seeds: Sequence[int], device: torch.device | str) -> None:
        numbers = [[signed(scramble(scramble(seed) + stream)) for seed in seeds] for stream in range(3)]
        keys = torch.tensor(numbers, dtype=torch.int64, device=device)
        self.draft, self.verify, self.position = Stream(keys[0]), Stream(keys[1]), PositionStream(keys[2])

    def start(self, seeds: Sequence[int]) -> SeededRandom:
        """The streams of new rows, not yet joined to these."""
        return SeededRandom.of_seeds(seeds, self.draft.device)

    def join(self, new: SeededRandom) -> None:
        """Puts the streams of new rows after these."""
        self.draft.join(new.draft)
        self.verify.join(new.verify)
        self.position.join(new.position)

    def advance(self, count: Tensor, most: int) -> None:
        """Ends a cycle that committed count [B] tokens, `most` at most: fresh numbers in every stream."""
        self.draft.advance()
        self.verify.advance()
        self.position.advance(count, most)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order; each keeps its own numbers."""
        self.draft.keep(rows)
        self.verify.keep(rows)
        self.position.keep(rows)


def row_seed(seed: int, row: int) -> int:
    """The seed of one row of a batch with a common seed."""
    return scramble(scramble(seed) + row)


class Stream:
    """A RandomSource: one stream of uniforms per row, restarted in every cycle.

    The calls of a cycle are counted per method, so that a row whose neighbours need more Bernoulli draws still gets the
    same numbers for its categorical draws. State that changes from cycle to cycle and is read by a draw is a tensor on
    the device, so that a replayed CUDA graph gets fresh numbers.
    """

    def __init__(self, keys: Tensor) -> None:
        """The streams of B rows with 64-bit keys [B]."""
        self._keys = keys
        self._places = places((CALLS, ELEMENTS), keys.device).flatten()
        self._cycle = torch.zeros_like(keys)  # [B], of each row
        self._asked, self._skipped = False, 0  # an unused stream only counts its cycles
        self._calls = [0] * METHODS
        self._block: Tensor | None = None  # [B, CYCLES, CALLS * ELEMENTS]; hashing few or many costs the same
        self._age = 0  # cycles since the block was made; an unused stream has no block
        self._now: Tensor | None = None  # [B, CALLS * ELEMENTS], this cycle's part of the block

    @property
    def device(self) -> torch.device:
        """The device of its numbers."""
        return self._keys.device

    def advance(self) -> None:
        """Starts a new cycle."""
        if not self._asked:
            self._skipped += 1
            return
        self._cycle += 1
        self._calls = [0] * METHODS
        if self._block is not None:
            self._age += 1
            self._look()

    def join(self, new: Stream) -> None:
        """Puts the streams of new rows after these."""
        self._keys = torch.cat([self._keys, new._keys])
        self._cycle = torch.cat([self._cycle, new._cycle + (new._skipped - self._skipped)])
        self._block = None

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._keys, self._cycle = self._keys[rows], self._cycle[rows]
        if self._block is not None and self._now is not None:
            self._block, self._now = self._block[rows], self._now[rows]

    def categorical(self, probs: Tensor) -> Tensor:
        """One index per law: probs [B, ..., V] -> [B, ...] int64. Never an index of probability 0.

        The laws need not be normalised; each must have a positive sum.
        """
        return pick(cumulated(probs), self._uniforms(CATEGORICAL, probs.shape[:-1]))

    def bernoulli(self, p: Tensor) -> Tensor:
        """One Bernoulli draw per probability: p [B, ...] in [0, 1] -> [B, ...] bool. Never True for p = 0."""
        return self._uniforms(BERNOULLI, p.shape) < p

    def without_replacement(self, probs: Tensor, k: int) -> Tensor:
        """k indices in draw order: probs [B, ..., V] -> [B, ..., k] int64; -1 once the mass is used up.

        The tokens are drawn one after the other from the remaining mass, which gives the law of Gumbel top-k with k
        uniforms per row instead of V.
        """
        left = probs.to(torch.float64, copy=True)
        uniforms = self._uniforms(WITHOUT_REPLACEMENT, (*probs.shape[:-1], k))
        drawn = []
        for slot in range(k):
            mass = cumulated(left)
            index = pick(mass, uniforms[..., slot])
            empty = mass[..., -1] <= 0
            drawn.append(index.masked_fill(empty, -1))
            if slot + 1 < k:
                left.scatter_(-1, index.masked_fill(empty, 0)[..., None], 0)
        return torch.stack(drawn, -1)

    def _uniforms(self, method: int, shape: tuple[int, ...]) -> Tensor:
        # Uniforms in [0, 1) for the next call of a method, one for each element: [B, ...] float64.
        self._asked = True
        call = self._calls[method] * METHODS + method
        self._calls[method] += 1
        size = math.prod(shape[1:])
        if call < CALLS and size <= ELEMENTS and size == math.prod(shape[1:2]):
            if self._block is None or self._now is None:
                self._look()
            assert self._now is not None
            start = call * ELEMENTS
            return self._now[:, start : start + size].reshape(shape)
        element = places((1, *shape[1:]), self.device).flatten() + signed(call * stride(0))
        return self._hash(element, self._cycle[:, None]).reshape(shape)

    def _look(self) -> None:
        # Finds this cycle's numbers in the block; makes a new block when the last is used up.
        if self._block is None or self._age == CYCLES:
            offsets = torch.arange(CYCLES, device=self.device)
            self._block, self._age = self._hash(self._places, self._cycle[:, None] + offsets), 0
        part = self._block[:, self._age]
        if self._now is not None and self._now.shape == part.shape:
            self._now.copy_(part)  # a captured step reads from this address
        else:
            self._now = part.clone()

    def _hash(self, element: Tensor, cycle: Tensor) -> Tensor:
        # Uniforms for elements [E] in cycles [B, C] of each row: [B, C, E].
        mixed = scramble_all(cycle + self._skipped)[:, :, None] + element
        return unit(scramble_all(self._keys[:, None, None] + mixed))


class PositionStream:
    """A RandomSource for rules that draw one token per position of the text: call c draws for the c-th new position.

    Its numbers are functions of a row's seed and the position alone, so they do not depend on drafts, batch or cycles.
    """

    def __init__(self, keys: Tensor) -> None:
        """The streams of B rows with 64-bit keys [B], at the first position."""
        self._keys = keys
        self.place = torch.zeros_like(keys)
        """Number of tokens committed so far, [B] int64."""
        self._call = 0
        self._block: Tensor | None = None  # [B, P], from the position `_first` [B] on
        self._first = self.place
        self._used = 0  # the most positions of the block that may be used

    def advance(self, count: Tensor, most: int) -> None:
        """Advances by count [B] positions, `most` at most."""
        self.place = self.place + count
        self._call = 0
        self._used += most

    def join(self, new: PositionStream) -> None:
        """Puts the streams of new rows after these."""
        self._keys = torch.cat([self._keys, new._keys])
        self.place = torch.cat([self.place, new.place])
        self._block = None

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._keys, self.place = self._keys[rows], self.place[rows]
        if self._block is not None:
            self._block, self._first = self._block[rows], self._first[rows]

    def categorical(self, probs: Tensor) -> Tensor:
        """One index per law, for each row's next position: probs [B, V] -> [B] int64."""
        call, self._call = self._call, self._call + 1
        if self._block is None or self._used + call >= self._block.shape[1]:
            self._first, self._used = self.place, 0
            offsets = torch.arange(max(PLACES, 2 * call + 2), device=self._keys.device)  # [P]
            self._block = unit(scramble_all(self._keys[:, None] + scramble_all(self._first[:, None] + offsets)))
        where = (self.place - self._first + call)[:, None]  # [B, 1]
        return pick(cumulated(probs), self._block.gather(1, where)[:, 0])

    def bernoulli(self, p: Tensor) -> Tensor:
        """Raises RuntimeError: a rule with Bernoulli draws needs more than one draw per position."""
        raise RuntimeError("draws by position are one categorical a place; use the stream `verify`")

    def without_replacement(self, probs: Tensor, k: int) -> Tensor:
        """Raises RuntimeError: see `bernoulli`."""
        return self.bernoulli(probs)


def uniforms(seed: int, *shape: int) -> Tensor:
    """Uniforms in [0, 1) that are functions of seed and index alone: float64 [*shape]."""
    return unit(scramble_all(places(shape, "cpu") + signed(scramble(seed))))


def cumulated(probs: Tensor) -> Tensor:
    """Cumulative probabilities [..., V] in float64, constant wherever a probability is 0."""
    mass = probs.cumsum(-1, dtype=torch.float64)
    if not probs.is_cpu:
        # A parallel sum associates differently at every index, so it may not be monotone in its last bits.
        mass = mass.masked_fill(probs <= 0, 0).cummax(-1)[0]
    return mass


def pick(mass: Tensor, uniforms: Tensor) -> Tensor:
    """The first indices at which the cumulative mass [..., V] exceeds u times the total, u [...]: [...] int64.

    u * total stays below the total for every u = n / 2^53 < 1, so only a law without mass gives the index V.
    """
    threshold = uniforms[..., None] * mass[..., -1:]
    return torch.searchsorted(mass, threshold, right=True)[..., 0]
