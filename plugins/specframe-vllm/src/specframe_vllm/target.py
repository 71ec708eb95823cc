"""vLLM's model as the target that drafters share: its embedding, its LM head and its hidden states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from specframe import CompositionError
from specframe.neural import Quantization, round_linear
from specframe.plugin import PartialHead, TargetIdentity, identify

BLOCK = 32
"""Number of inputs of a quantized matrix that share a scale."""


class EngineTarget:
    """A neural target around a model of vLLM, which decodes by itself: it only embeds tokens and computes logits.

    Args:
        model: the loaded model of a runner.
        config: its transformers config.
        name: its folder or name on the Hub.
        tokenizer: the folder or name of its tokenizer.
        dtype: the dtype of its features.
        context: maximum number of tokens of a request.
        device: the device of its tokens.
        inner: true for a model that gives the outputs of inner layers.
    """

    def __init__(
        self,
        model: nn.Module,
        config: Any,
        *,
        name: str,
        tokenizer: str,
        dtype: torch.dtype,
        context: int,
        device: torch.device,
        inner: bool,
    ) -> None:
        self.config, self.dtype, self.context, self.device = config, dtype, context, device
        self.vocab_size: int = config.vocab_size
        self.taps: frozenset[str] = frozenset()
        """Features that the drafter requested."""
        self._model: Any = model
        self._name, self._tokenizer, self._inner = name, tokenizer, inner

    @property
    def layers(self) -> list[int]:
        """Layers whose outputs are features, ascending, counted from 0."""
        return sorted(int(tap.removeprefix("layer.")) for tap in self.taps if tap != "last")

    @cached_property
    def tokenizer(self) -> Any:
        """Its transformers tokenizer."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._tokenizer)

    def identify(self) -> TargetIdentity:
        """Returns the identity of the model, as recorded in drafters that were trained for it."""
        return identify(self._model, self.config, self._name)

    def request(self, taps: frozenset[str]) -> None:
        """Adds the named features to every pass. Raises CompositionError for one that vLLM does not provide."""
        count = self.config.num_hidden_layers if self._inner else 0
        if strange := sorted(taps - {"last", *(f"layer.{layer}" for layer in range(count))}):
            given = f"last and layer.0 to layer.{count - 1}" if count else "last alone"
            raise CompositionError(
                f"the drafter reads {', '.join(strange)} of the target, and of this model vLLM gives {given}"
            )
        self.taps |= taps

    def embed(self, tokens: Tensor) -> Tensor:
        """Returns the token embeddings as the first layer receives them: [...] int64 -> [..., D]."""
        embedded: Tensor = self._model.embed_input_ids(tokens.flatten())
        return embedded.view(*tokens.shape, -1)

    def head(self, features: Tensor) -> Tensor:
        """Returns the logits for features of the tap `last`: [..., D] -> [..., V]."""
        logits: Tensor = self._model.compute_logits(features.reshape(-1, features.shape[-1]))
        return logits[:, : self.vocab_size].view(*features.shape[:-1], -1)

    def head_for(self, tokens: slice | Tensor, quantize: Quantization | None = None) -> Callable[[Tensor], Tensor]:
        """Returns a head for these tokens alone, from copied rows of the LM head: [..., D] -> [..., T].

        Raises CompositionError for an LM head that is not a plain matrix, or is spread over several devices.
        """
        weight = getattr(getattr(self._model, "lm_head", None), "weight", None)
        if isinstance(weight, Tensor) and weight.dim() == 2 and weight.is_floating_point():
            rows = weight.detach()[: self.vocab_size][tokens]
            probe = torch.linspace(-1, 1, rows.shape[1], device=rows.device, dtype=rows.dtype)[None]
            computed, wanted = nn.functional.linear(probe, rows).float(), self.head(probe)[:, tokens].float()
            if computed.shape == wanted.shape and (computed - wanted).norm() <= 0.02 * wanted.norm():
                if quantize is not None and self.device.type == "cpu" and rows.shape[1] % BLOCK == 0:
                    packed = round_linear(rows, None, quantize)
                    return PartialHead(packed, packed, _unchanged)
                return PartialHead(lambda features: nn.functional.linear(features, rows), None, _unchanged)
        raise CompositionError("the LM head of vLLM's model cannot be read in part; use the head full")

    def _decode(self, *arguments: object) -> NoReturn:
        raise CompositionError("vLLM decodes by itself: this drafter runs the target, and cannot run within vLLM")

    open = admit = score = commit = keep = teach = _decode


def features_of(target: EngineTarget, last: Tensor, inner: list[Tensor] | None) -> Mapping[str, Tensor]:
    """Returns the features of a vLLM pass, [T, D] by tap: the model's output, and the outputs of `layers`."""
    found = {f"layer.{layer}": values for layer, values in zip(target.layers, inner or (), strict=True)}
    return {tap: found.get(tap, last) for tap in sorted(target.taps)}


def _unchanged(values: Tensor) -> Tensor:
    return values
