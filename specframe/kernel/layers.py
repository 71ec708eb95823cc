"""A target whose own layers draft: which of them run, and what it must be able to do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from specframe.kernel.interfaces import NeuralTarget

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.types import TokenTree


@dataclass(frozen=True)
class LayerChoice:
    """Which attentions and which MLPs of a decoder's layers run; what is left out passes its input on."""

    attention: tuple[bool, ...]
    mlp: tuple[bool, ...]

    @classmethod
    def first(cls, count: int, layers: int) -> LayerChoice:
        """The first `count` of so many layers."""
        runs = tuple(layer < count for layer in range(layers))
        return cls(runs, runs)

    @classmethod
    def without(cls, layers: int, attention: Collection[int], mlp: Collection[int]) -> LayerChoice:
        """All of so many layers but these attentions and these MLPs."""
        return cls(
            tuple(layer not in attention for layer in range(layers)), tuple(layer not in mlp for layer in range(layers))
        )

    @property
    def layers(self) -> int:
        """How many layers the decoder has."""
        return len(self.attention)

    @property
    def kept(self) -> tuple[int, ...]:
        """The layers of which something runs."""
        return tuple(layer for layer in range(self.layers) if self.attention[layer] or self.mlp[layer])

    @property
    def whole(self) -> int:
        """How many layers run before the first of which something is left out."""
        both = [a and m for a, m in zip(self.attention, self.mlp, strict=True)]
        return both.index(False) if False in both else self.layers

    @property
    def rest(self) -> LayerChoice:
        """The layers from the first on of which something is left out here, all of them whole."""
        runs = tuple(layer >= self.whole for layer in range(self.layers))
        return LayerChoice(runs, runs)


@runtime_checkable
class LayeredTarget(NeuralTarget, Protocol):
    """A target whose own layers a drafter can run over a draft, on the keys and values of the committed text."""

    def check_layers(self, chosen: LayerChoice) -> None:
        """Raises CompositionError where the target cannot draft with the chosen layers. A running session goes on."""

    def run_layers(self, chosen: LayerChoice, tree: TokenTree, nodes: Tensor) -> Mapping[str, Tensor]:
        """The features [B, F, D] of draft nodes [B, F] when the chosen layers alone run: `last`, and `layer.K`.

        K is `chosen.whole - 1`, the last layer that none was left out before. The tree is a frontier's: its first is
        the root alone, and a node's parent ran before. `score` does not run the first `chosen.whole` layers again over
        nodes that they ran over here, by their paths.
        """
