"""Features of a target, captured by forward hooks that exist only while a forward of ours runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from specframe.kernel.errors import CompositionError


class Taps:
    """The features a decoder can give: `last` and `layer.0` .. `layer.(n-1)`.

    `last` is the decoder's last_hidden_state, after the final norm: the LM head's input. `layer.K` is
    the output of decoder layer K, counted from 0. With transformers' `output_hidden_states=True` that is
    `hidden_states[K + 1]`, except for the last layer, where hidden_states[n] is `last` instead.
    """

    def __init__(self, decoder: nn.Module, layers: Mapping[int, nn.Module]) -> None:
        self._modules: dict[str, nn.Module] = {"last": decoder}
        self._modules |= {f"layer.{index}": layer for index, layer in layers.items()}
        self.layers = len(layers)
        """Number of layers."""
        self._wanted: frozenset[str] = frozenset()

    def request(self, names: frozenset[str]) -> None:
        """Adds taps to those that every forward captures. Raises CompositionError for a tap that does not exist."""
        if unknown := sorted(names - self._modules.keys()):
            raise CompositionError(
                f"the target has no feature {', '.join(unknown)}; it has: last, layer.0 .. layer.{self.layers - 1}"
            )
        self._wanted |= names

    @property
    def wanted(self) -> frozenset[str]:
        """The taps requested so far."""
        return self._wanted

    def module(self, name: str) -> nn.Module:
        """The module whose output a tap is."""
        return self._modules[name]

    @contextmanager
    def listening(self, names: frozenset[str]) -> Iterator[Mapping[str, Tensor]]:
        """A mapping tap -> [B, T, D] that fills while the model runs inside the with block."""
        captured: dict[str, Tensor] = {}
        handles = [self._modules[name].register_forward_hook(make_hook(name, captured)) for name in sorted(names)]
        try:
            yield captured
        finally:
            for handle in handles:
                handle.remove()


def make_hook(name: str, captured: dict[str, Tensor]) -> Any:
    """A forward hook that keeps a module's output under a name."""

    def capture(module: nn.Module, inputs: Any, output: Any) -> None:
        captured[name] = output if isinstance(output, Tensor) else output[0]

    return capture
