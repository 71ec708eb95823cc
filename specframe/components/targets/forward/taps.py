"""Features of a target, captured by hooks that exist only during a forward pass of specframe's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets.forward.attention import attention_of, showing
from specframe.kernel.errors import CompositionError
from specframe.kernel.predictions import IMAGES
from specframe.neural.forward import Features, is_query


class Taps:
    """Features that a decoder gives: `last`, `layer.0` .. `layer.(n-1)` and `images`.

    `last` is the decoder's last_hidden_state, after the final norm: the input of the LM head. `layer.K` is the output
    of decoder layer K, counted from 0. In transformers' `output_hidden_states=True` it is `hidden_states[K + 1]`,
    except for the last layer, because hidden_states[n] is `last`. `images` is the first layer's input at tokens that
    stand for parts of an image, and 0 elsewhere; it is captured together with `last`.
    """

    def __init__(
        self, decoder: nn.Module, layers: Mapping[int, nn.Module], image_tokens: frozenset[int] = frozenset()
    ) -> None:
        self.move(decoder, layers)
        self.layers = len(layers)
        """Number of layers."""
        self._image_tokens = sorted(image_tokens)
        self._images = False
        self._wanted: frozenset[str] = frozenset()
        self._queries: frozenset[str] = frozenset()
        self._ends: frozenset[str] = frozenset()

    def move(self, decoder: nn.Module, layers: Mapping[int, nn.Module]) -> None:
        """Captures the features of these modules from now on; they must belong to the same model."""
        self._modules: dict[str, nn.Module] = {"last": decoder}
        self._modules |= {f"layer.{index}": layer for index, layer in layers.items()}
        self._attention = {f"query.{index}": attention_of(layer) for index, layer in layers.items()}
        self._first = layers[min(layers)]

    def request(self, names: frozenset[str]) -> None:
        """Adds taps to those captured in every forward pass. Raises CompositionError for a tap that does not exist."""
        if unknown := sorted(names - self._modules.keys() - {IMAGES}):
            raise CompositionError(
                f"the target has no feature {', '.join(unknown)}; it has: last, layer.0 .. layer.{self.layers - 1}"
            )
        if IMAGES in names:
            self._images, names = True, names - {IMAGES} | {"last"}
        self._wanted |= names

    def request_queries(self) -> None:
        """Captures the queries of all layers, `query.K`, in every forward pass."""
        self._queries = frozenset(self._attention)

    def request_ends(self) -> None:
        """Captures the queries of all layers in forward passes over prompts."""
        self._ends = frozenset(self._attention)

    @property
    def attentions(self) -> list[nn.Module]:
        """Returns the attention modules of the layers, as far as they are known."""
        return [layer for layer in self._attention.values() if layer is not None]

    @property
    def of_prompts(self) -> frozenset[str]:
        """Returns the taps captured in forward passes over prompts."""
        return self.every | self._ends

    @property
    def wanted(self) -> frozenset[str]:
        """Returns the taps requested so far."""
        return self._wanted

    @property
    def every(self) -> frozenset[str]:
        """Returns all requested taps, queries included."""
        return self._wanted | self._queries if self._queries else self._wanted

    def images(self, inputs: Mapping[str, Tensor]) -> frozenset[str]:
        """Returns the tap `images` if it was requested and the texts have inputs; otherwise no taps."""
        return frozenset({IMAGES}) if self._images and inputs else frozenset()

    def whole(self, features: Features) -> Features:
        """Returns the features, with `images` as zeros if it was requested and the texts had none."""
        if not self._images or IMAGES in features or "last" not in features:
            return features
        return {**features, IMAGES: torch.zeros_like(features["last"])}

    def cast(self, features: Features, dtype: torch.dtype) -> Features:
        """Converts the features to a dtype."""
        cast = {tap: values if values.dtype == dtype else values.to(dtype) for tap, values in features.items()}
        return self.whole(cast)

    def module(self, name: str) -> nn.Module:
        """Returns the module whose output is the tap."""
        return self._modules[name]

    @contextmanager
    def listening(
        self, names: frozenset[str], lengths: Sequence[int] | None = None, tokens: Tensor | None = None
    ) -> Iterator[Mapping[str, Tensor]]:
        """Captures features inside the with block: a mapping tap -> [B, T, D] that fills while the model runs.

        For texts of `lengths`, only the queries of the newest tokens are kept. `images` are located by the `tokens` [B,
        T].
        """
        captured: dict[str, Tensor] = {}
        with ExitStack() as hooks:
            for name in sorted(names):
                if is_query(name):
                    if name in self._attention:  # a draft may skip its layer
                        hooks.enter_context(showing(self._attention[name], name, captured, lengths))
                elif name == IMAGES and tokens is not None:
                    shown = torch.isin(tokens, torch.tensor(self._image_tokens, device=tokens.device))  # [B, T]
                    handle = self._first.register_forward_pre_hook(_entry_hook(shown, captured), with_kwargs=True)
                    hooks.callback(handle.remove)
                else:
                    handle = self._modules[name].register_forward_hook(make_hook(name, captured))
                    hooks.callback(handle.remove)
            yield captured


def make_hook(name: str, captured: dict[str, Tensor]) -> Any:
    """Returns a forward hook that stores a module's output under a name."""

    def capture(module: nn.Module, inputs: Any, output: Any) -> None:
        captured[name] = output if isinstance(output, Tensor) else output[0]

    return capture


def _entry_hook(shown: Tensor, captured: dict[str, Tensor]) -> Any:
    """Returns a hook that stores a layer's input at the positions `shown`, [B, T] bool, and 0 at others."""

    def capture(module: nn.Module, inputs: Any, named: Any) -> None:
        states = inputs[0] if inputs else named["hidden_states"]
        captured[IMAGES] = states * shown[..., None]

    return capture
