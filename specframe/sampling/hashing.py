"""SplitMix64 as a hash, of Python numbers and of tensors (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", 2014)."""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64's constants


def places(shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """A 64-bit number for every index of a shape that does not depend on the shape: int64 [*shape]."""
    total = torch.zeros((), dtype=torch.int64, device=device)
    for axis, size in enumerate(shape):
        total = total[..., None] + torch.arange(size, device=device) * signed(stride(axis))
    return total


def stride(axis: int) -> int:
    """The odd 64-bit number by which indices along this axis are multiplied.

    It is scrambled twice, so that a step along an axis does not lead from one cycle's or seed's numbers to another's.
    """
    return scramble(scramble(axis)) | 1


def unit(hashes: Tensor) -> Tensor:
    """Maps hashes to multiples of 2^-53 in [0, 1): int64 -> float64."""
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
