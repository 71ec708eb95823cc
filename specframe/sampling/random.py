"""Seeded randomness whose every number is a pure function of where it is used.

A uniform is a SplitMix64 hash (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
2014) of seed, stream, row, cycle, method, call and element. There is no generator state to get out of
step, so a row's numbers depend neither on its neighbours in the batch, nor on how far a call was padded
for their sake, nor on the device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64's constants
CATEGORICAL, BERNOULLI, WITHOUT_REPLACEMENT, METHODS = 0, 1, 2, 3
CYCLES, CALLS, ELEMENTS = 8, 24, 4  # what one block holds: so many cycles, their first calls, few elements


class SeededRandom:
    """The randomness of a session: one independent stream per row for drafting, one for verifying.

    `draft` and `verify` are RandomSources. They never share a number, nor do two cycles: the acceptance
    rules are exact only for fresh noise.
    """

    def __init__(self, seed: int, rows: int, device: torch.device | str = "cpu") -> None:
        """Streams for rows 0 .. rows - 1 of a session; any whole number is a seed."""
        self.draft = Stream(scramble(scramble(seed) + 1), rows, device)
        self.verify = Stream(scramble(scramble(seed) + 2), rows, device)

    def advance(self) -> None:
        """Starts a new cycle: fresh numbers in every stream."""
        self.draft.advance()
        self.verify.advance()

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order; each keeps its own numbers."""
        self.draft.keep(rows)
        self.verify.keep(rows)


class Stream:
    """A RandomSource: one stream of uniforms per row, begun afresh by every cycle.

    The calls of a cycle are counted for each method on its own, so that a row whose neighbours need
    more coins than itself still gets the same numbers for its categorical draws.
    """

    def __init__(self, key: int, rows: int, device: torch.device | str = "cpu") -> None:
        """The streams of rows 0 .. rows - 1 under a 64-bit key."""
        row = torch.arange(1, rows + 1, device=device)
        self._keys = scramble_all(row * signed(GOLDEN) + signed(key))  # [B]
        self._block_places = places((CALLS, ELEMENTS), device).flatten()
        self._cycle = 0
        self._calls = [0] * METHODS
        self._block: Tensor | None = None  # [B, CYCLES, CALLS * ELEMENTS]; hashing few or many costs the same

    def advance(self) -> None:
        """Starts a new cycle."""
        self._cycle += 1
        self._calls = [0] * METHODS
        if self._cycle % CYCLES == 0:
            self._block = None

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        self._keys = self._keys[rows]
        self._block = None if self._block is None else self._block[rows]

    def categorical(self, probs: Tensor) -> Tensor:
        """One index per law: probs [B, ..., V] -> [B, ...] int64. Never an index of probability 0.

        The laws need not be normalised; each must have a positive sum.
        """
        return pick(cumulated(probs), self._uniforms(CATEGORICAL, probs.shape[:-1]))

    def bernoulli(self, p: Tensor) -> Tensor:
        """One coin per probability: p [B, ...] in [0, 1] -> [B, ...] bool. p = 0 never comes up true."""
        return self._uniforms(BERNOULLI, p.shape) < p

    def without_replacement(self, probs: Tensor, k: int) -> Tensor:
        """k indices in draw order: probs [B, ..., V] -> [B, ..., k] int64; -1 once the mass is used up.

        Drawn one after the other from what the earlier ones left over: the same law as Gumbel top-k,
        for k uniforms a row instead of V.
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
        call = self._calls[method] * METHODS + method
        self._calls[method] += 1
        size = math.prod(shape[1:])
        if call < CALLS and size <= ELEMENTS and size == math.prod(shape[1:2]):
            if self._block is None:
                first = self._cycle - self._cycle % CYCLES
                self._block = self._hash(self._block_places, range(first, first + CYCLES))
            cycle, start = self._cycle % CYCLES, call * ELEMENTS
            if len(shape) == 1:
                return self._block[:, cycle, start]
            return self._block[:, cycle, start : start + size].reshape(shape)
        element = places((1, *shape[1:]), self._keys.device).flatten() + signed(call * stride(0))
        return self._hash(element, range(self._cycle, self._cycle + 1)).reshape(shape)

    def _hash(self, element: Tensor, cycles: range) -> Tensor:
        # Uniforms for places [E] in some cycles: [B, cycles, E].
        cycle = torch.tensor([signed(scramble(number)) for number in cycles], device=element.device)
        return unit(scramble_all(self._keys[:, None, None] + (cycle[:, None] + element)))


def uniforms(seed: int, *shape: int) -> Tensor:
    """Numbers in [0, 1) that are functions of seed and index alone: float64 [*shape]."""
    return unit(scramble_all(places(shape, "cpu") + signed(scramble(seed))))


def cumulated(probs: Tensor) -> Tensor:
    """Cumulated probabilities [..., V] in float64, constant wherever a probability is 0."""
    mass = probs.cumsum(-1, dtype=torch.float64)
    if probs.device.type != "cpu":
        # A parallel sum associates differently at every index and need not be monotone in its last bits.
        mass = mass.masked_fill(probs <= 0, 0).cummax(-1)[0]
    return mass


def pick(mass: Tensor, uniforms: Tensor) -> Tensor:
    """The indices at which cumulated mass [..., V] first exceeds its uniform share [...]: [...] int64.

    u * total stays below total for every u = n / 2^53 < 1, so only a law without mass runs over.
    """
    threshold = uniforms[..., None] * mass[..., -1:]
    return torch.searchsorted(mass, threshold, right=True)[..., 0]


def places(shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """A 64-bit number for every index of a shape that does not depend on the shape: int64 [*shape]."""
    total = torch.zeros((), dtype=torch.int64, device=device)
    for axis, size in enumerate(shape):
        total = total[..., None] + torch.arange(size, device=device) * signed(stride(axis))
    return total


def stride(axis: int) -> int:
    """The odd 64-bit number by which indices along this axis are spread.

    Scrambled twice, lest a step along an axis lead from the numbers of one cycle or seed to another's.
    """
    return scramble(scramble(axis)) | 1


def unit(hashes: Tensor) -> Tensor:
    """Hashes as multiples of 2^-53 in [0, 1): int64 -> float64."""
    return (hashes >> 11 & (1 << 53) - 1) * torch.tensor(2.0**-53, dtype=torch.float64)


def signed(number: int) -> int:
    """The number modulo 2^64, as the int64 with the same bits."""
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def scramble(number: int) -> int:
    """SplitMix64's output for the state after this one, for Python numbers."""
    z = (number + GOLDEN) & (1 << 64) - 1
    z = (z ^ z >> 30) * FIRST & (1 << 64) - 1
    z = (z ^ z >> 27) * SECOND & (1 << 64) - 1
    return z ^ z >> 31


def scramble_all(states: Tensor) -> Tensor:
    """`scramble` for int64 tensors, whose arithmetic wraps and whose shifts keep the sign."""
    z = states + signed(GOLDEN)
    z = (z ^ (z >> 30 & (1 << 34) - 1)) * signed(FIRST)
    z = (z ^ (z >> 27 & (1 << 37) - 1)) * signed(SECOND)
    return z ^ (z >> 31 & (1 << 33) - 1)
