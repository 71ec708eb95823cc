"""Cost of a forward pass in each precision that a target supports: unchanged, compiled, or native."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from specframe.components.trees.optimal import Choice
from specframe.decoding.costs import time_forwards
from specframe.inspect.profile import Profile

PLAIN = {"quantize": "null", "native": "false", "compile": "false"}
PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "float32": {"dtype": "float32", **PLAIN},
    "float32, compiled": {"dtype": "float32", **PLAIN, "compile": "true"},
    "float32, native": {"dtype": "float32", **PLAIN, "native": "true"},
    "bfloat16": {"dtype": "bfloat16", **PLAIN},
    "bfloat16, compiled": {"dtype": "bfloat16", **PLAIN, "compile": "true"},
    "bfloat16, native": {"dtype": "bfloat16", **PLAIN, "native": "true"},
    "int8": {"dtype": "bfloat16", **PLAIN, "quantize": "int8"},
    "int4": {"dtype": "bfloat16", **PLAIN, "quantize": "int4"},
}
"""Overrides of the target section for each precision."""


def section(name: str) -> str:
    """Returns the target section for a precision, without default values."""
    return ", ".join(f"{key}: {value}" for key, value in PRECISIONS[name].items() if PLAIN.get(key) != value)


def time_threads(target: Any, nodes: int) -> dict[int, dict[int, float]]:
    """Returns the seconds of forward passes over 1 and `nodes` nodes, by number of threads: powers of two, and all."""
    most = torch.get_num_threads()
    counts = sorted({most, *(1 << power for power in range(most.bit_length()) if 1 << power <= most)})
    found = {}
    try:
        for count in counts:
            torch.set_num_threads(count)
            found[count] = time_forwards(target, {1, nodes})
    finally:
        torch.set_num_threads(most)
    return found


def fastest_tree(found: Profile, forwards: Mapping[int, float], depth: int) -> Choice | None:
    """Returns the fastest tree for these forward times and the measured acceptance; None if plain decoding is faster.

    Costs of a cycle other than the forward passes are not counted.
    """
    choice = found.fastest(depth, {size: seconds for size, seconds in forwards.items() if size > 1})
    return choice if choice.tau / choice.seconds > 1 / forwards[1] else None
