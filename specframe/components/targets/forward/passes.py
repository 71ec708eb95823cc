"""The forward passes that a target of transformers needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from torch import Tensor, nn

from specframe.components.targets.forward.state import State
from specframe.components.targets.forward.taps import Taps
from specframe.kernel.layers import LayerChoice
from specframe.kernel.types import TokenTree

Found = tuple[Tensor, Mapping[str, Tensor]]
"""Logits [B, T, V], and the features [B, T, D] of the taps."""


class Computing(nn.Module):
    """A module that is called for every forward pass over nodes, whole or by some of the layers, to be hooked."""

    def forward(self, run: Callable[[], Any]) -> Any:
        """Returns the output of the forward pass."""
        return run()


class Passes(Protocol):
    """The forward passes of a session: transformers' own, as they are or compiled, or those of the kernels."""

    computing: Computing
    """Wrapper that runs the passes over nodes."""
    masked: bool
    """True if every kind of layer is given a mask of its own, as windows need where they bite."""
    head: nn.Module
    """The LM head, as it computes where no gradients are wanted."""

    @property
    def widths(self) -> Callable[[int], int] | None:
        """Function from the number of positions needed to the number allocated; None: any number is possible."""
        ...

    def around(self, taps: Taps) -> Passes:
        """The same with other taps."""
        ...

    def read(self, tokens: Tensor, state: State, last: Tensor, start: int = 0) -> Found:
        """Reads prompts [A, L]: the logits [A, V] at their last tokens, whose places are `last` [A], and all features.

        If `start` tokens were read before, the prompts are the rest, of one prompt. The state is aimed at their slots.
        """
        ...

    def score(self, tree: TokenTree, state: State, positions: Tensor) -> Found:
        """Scores a tree whose nodes are at `positions` [B, N]. The state is aimed at their slots."""
        ...

    def below(
        self, tree: TokenTree, nodes: Tensor, state: State, positions: Tensor, chosen: LayerChoice
    ) -> Mapping[str, Tensor]:
        """The features [B, F, D] of nodes [B, F] of a tree after the chosen layers alone.

        They are `last`, the taps that are requested of the first `chosen.whole` layers, and that of the last of these.
        """
        ...

    def above(self, tree: TokenTree, state: State, positions: Tensor, entry: Tensor, chosen: LayerChoice) -> Found:
        """Runs the chosen layers over a tree, given the first layer's input states [B, N, D] for its nodes.

        Features are those of the taps from there on. The state is aimed at the nodes' slots.
        """
        ...


def numbered(taps: frozenset[str]) -> dict[str, int]:
    """The layers of the taps that are a layer's."""
    return {tap: int(tap.partition(".")[2]) for tap in taps if tap != "last"}


def taps_below(taps: frozenset[str], chosen: LayerChoice) -> frozenset[str]:
    """The taps of the output of `Passes.below`."""
    found = {tap for tap, layer in numbered(taps).items() if layer < chosen.whole}
    return frozenset(found | {"last"} | ({f"layer.{chosen.whole - 1}"} if chosen.whole else set()))


def taps_above(taps: frozenset[str], chosen: LayerChoice) -> frozenset[str]:
    """The requested taps of the output of `Passes.above`."""
    first = chosen.kept[0]
    return frozenset(tap for tap in taps if tap == "last" or numbered(taps)[tap] >= first)
