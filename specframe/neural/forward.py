"""One forward pass over a memory: of targets and drafting models, by all of their layers or some."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from specframe.kernel.layers import LayerChoice
from specframe.native.sight import Sight
from specframe.neural.cache import SlotCache

Features = Mapping[str, Tensor]
"""Features [B, T, D] by their taps."""
Keep = Tensor | slice
"""The positions whose logits are made, as an index of the T: a slice, or for each row its own, [B, E] int64."""
EVERY = slice(None)
"""The logits of all positions."""
NONE = slice(0)
"""No logits: the LM head does not run."""


@dataclass(frozen=True)
class Inputs:
    """The tokens of one forward pass, where they stand, and what they see."""

    tokens: Tensor  # [B, T] int64
    positions: Tensor  # [B, T] int64
    sight: Sight
    row: int = 0  # the memory's row of the first row
    states: Tensor | None = None  # [B, T, D], input of the first layer that runs; None: the tokens' embeddings


class Forward(Protocol):
    """A model's forward pass: transformers' own, compiled, or native."""

    @property
    def head(self) -> nn.Module:
        """The LM head, as it computes where no gradients are wanted."""

    @property
    def windows(self) -> bool:
        """True if every kind of layer is given a mask of its own, as sliding windows need where they hide something."""

    @property
    def widths(self) -> Callable[[int], int] | None:
        """Function from the number of slots needed to the number that its memory has; None: any number is possible."""

    def run(
        self,
        inputs: Inputs,
        memory: SlotCache,
        taps: frozenset[str] = frozenset(),
        layers: LayerChoice | None = None,
        keep: Keep = EVERY,
    ) -> tuple[Tensor | None, Features]:
        """The logits [B, E, V] of the positions to keep, None for `NONE`, and the taps' features [B, T, D].

        Keys and values are written into the memory, at the slots that the sight names. Layers that are not chosen pass
        their input on; none chosen: all run. `layer.K` is layer K's output, counted from 0, as it enters the next;
        `last` is the LM head's input, after the last layer that runs.
        """


def gather_each(values: Tensor, places: Tensor) -> Tensor:
    """The entries of each row at its own places: [B, T, D], [B, E] -> [B, E, D]."""
    return values[torch.arange(len(places), device=places.device)[:, None], places]


class HookedForward(nn.Module):
    """A forward pass that runs as a module's does, so that hooks can time it."""

    def __init__(self, inner: Forward) -> None:
        super().__init__()
        self.inner = inner

    @property
    def head(self) -> nn.Module:
        """The LM head."""
        return self.inner.head

    @property
    def windows(self) -> bool:
        """True if every kind of layer is given a mask of its own."""
        return self.inner.windows

    @property
    def widths(self) -> Callable[[int], int] | None:
        """Function from the number of slots needed to the number that its memory has, or None."""
        return self.inner.widths

    def run(
        self,
        inputs: Inputs,
        memory: SlotCache,
        taps: frozenset[str] = frozenset(),
        layers: LayerChoice | None = None,
        keep: Keep = EVERY,
    ) -> tuple[Tensor | None, Features]:
        """Runs the forward pass, and the hooks."""
        found: tuple[Tensor | None, Features] = self(inputs, memory, taps, layers, keep)
        return found

    def forward(
        self, inputs: Inputs, memory: SlotCache, taps: frozenset[str], layers: LayerChoice | None, keep: Keep
    ) -> tuple[Tensor | None, Features]:
        """Runs the forward pass."""
        return self.inner.run(inputs, memory, taps, layers, keep)
