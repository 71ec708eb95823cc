"""What a decoder does behind its last layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets.passes.taps import make_hook


class Ending:
    """The modules that a decoder calls behind its last layer, in order: its final norm, and a projection in some.

    Constructing it runs the model on two tokens. `known` is whether these modules, one after the other, make the
    decoder's output of its last layer's.
    """

    def __init__(self, model: nn.Module, decoder: nn.Module, layers: nn.ModuleList) -> None:
        captured: dict[str, Tensor] = {}
        called: list[nn.Module] = []

        def begin(module: nn.Module, inputs: Any, output: Any) -> None:
            called.clear()

        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            called.append(module)

        others = [child for child in decoder.children() if child is not layers]
        handles = [
            *(child.register_forward_hook(note) for child in others),
            layers[-1].register_forward_hook(begin),
            layers[-1].register_forward_hook(make_hook("layer", captured)),
            decoder.register_forward_hook(make_hook("last", captured)),
        ]
        try:
            with torch.no_grad():
                model(torch.tensor([[1], [2]], device=next(model.parameters()).device), use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        self._modules = tuple(called)
        with torch.no_grad():
            found = self(captured["layer"])
        self.known = found.shape == captured["last"].shape and torch.allclose(found, captured["last"], rtol=1e-3)

    def __call__(self, features: Tensor) -> Tensor:
        """The decoder's output where its last layer's is `features`: [..., D] -> [..., D]."""
        for module in self._modules:
            features = module(features)
        return features
