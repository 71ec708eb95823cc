"""The target's embedding, final norm and LM head as drafters share them, with the architecture's scaling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets.forward.layer_subset import device_of, embedding_and_head
from specframe.components.targets.forward.taps import make_hook
from specframe.components.targets.native_model import LlamaModel
from specframe.kernel.errors import CompositionError
from specframe.native.blocks import BLOCK
from specframe.native.linear import QuantizedLinear, logits_of
from specframe.neural.forward import without_gradients
from specframe.neural.quantize import BITS, Quantization, round_linear, rounds


class FinalModules:
    """Modules that a decoder applies after its last layer, in order: the final norm and, in some models, a projection.

    The constructor runs the model on two tokens. `known` is True if applying these modules in order to the last layer's
    output gives the decoder's output.
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
        device = device_of(embedding_and_head(model)[0])
        try:
            with torch.no_grad():
                model(torch.tensor([[1], [2]], device=device), use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        self._modules = tuple(called)
        with torch.no_grad():
            found = self(captured["layer"])
        self.known = found.shape == captured["last"].shape and torch.allclose(found, captured["last"], rtol=1e-3)

    def __call__(self, features: Tensor) -> Tensor:
        """Maps the last layer's output to the decoder's output: [..., D] -> [..., D]."""
        for module in self._modules:
            features = module(features)
        return features


Rule = Callable[[Tensor], Tensor]


class Sharing:
    """The shared embedding and head of one model; the constructor runs a transformers model on two tokens.

    `head` is the LM head for computation without gradients: native code, if that runs the model.
    """

    def __init__(
        self, model: nn.Module, config: Any, decoder: nn.Module, layers: nn.ModuleList, head: nn.Module
    ) -> None:
        self._head = head
        embedding, output = embedding_and_head(model)
        self._embedding: nn.Module = embedding
        self._output: nn.Module = output
        self._scale: Rule | None = unchanged
        self._warp: Rule | None = unchanged
        if not isinstance(model, LlamaModel):
            self._find_rules(model, config, decoder, layers[0])
        self._name, self._parts = config.model_type, (model, decoder, layers)
        self._ending: FinalModules | None = None

    @torch.no_grad()
    def _find_rules(self, model: nn.Module, config: Any, decoder: nn.Module, first: nn.Module) -> None:
        table: Any = self._embedding.weight
        probe = torch.tensor([[1], [2]], device=device_of(self._embedding)) % len(table)
        entry, features, logits = _listen(model, decoder, first, probe)
        raw = self._embedding(probe)
        # Learned positions may be added after the embedding; the difference of two tokens cancels them.
        self._scale = _choose(embedding_rules(config, decoder), raw, entry, lambda states: states[:1] - states[1:])
        self._warp = _choose(logit_rules(config), self._output(features), logits, lambda states: states)

    @without_gradients
    def embed(self, tokens: Tensor) -> Tensor:
        """Returns the token embeddings as the first layer receives them, without learned positions."""
        if self._scale is None:
            raise CompositionError(
                f"the embedding of {self._name} cannot be shared: its first layer gets something that "
                "specframe has no rule for; take a drafter with weights of its own"
            )
        return self._scale(self._embedding(tokens))

    @property
    def table(self) -> Tensor | None:
        """Returns the table of token embeddings, [V, D]; None if the embeddings are not its rows."""
        embedding = self._embedding
        if type(embedding) is not nn.Embedding or embedding.max_norm is not None or self._scale is not unchanged:
            return None
        return None if embedding.weight.is_meta else embedding.weight.detach()

    def head(self, features: Tensor) -> Tensor:
        """Returns the model's logits for features of the tap `last`; gradients flow only to the features."""
        warp = self._known()
        if not torch.is_grad_enabled():
            return warp(logits_of(self._head, features))
        weights = {name: weight.detach() for name, weight in self._output.named_parameters()}
        logits: Tensor = torch.func.functional_call(self._output, weights, (features,))
        return warp(logits)

    @property
    def known(self) -> bool:
        """True if the logits are a known function of the LM head's output."""
        return self._warp is not None

    @torch.no_grad()
    def read(self, features: Tensor) -> Tensor:
        """Returns the logits of features `last` as in the model's forward pass: without gradients, in its precision."""
        with torch.autocast(features.device.type, enabled=False):
            return self._known()(self._output(features))

    @torch.no_grad()
    def norm(self, features: Tensor) -> Tensor:
        """Maps the last layer's output to the decoder's output, which is the input of an early exit's head."""
        if self._ending is None:
            model, decoder, layers = self._parts
            if isinstance(model, LlamaModel):
                model, decoder, layers = model.whole, model.whole.model, model.whole.model.layers
            self._ending = FinalModules(model, decoder, layers)
        if not self._ending.known:
            raise CompositionError(
                f"{self._name} does something after its last layer that specframe has no rule for, so its earlier "
                "layers cannot be read"
            )
        return self._ending(features)

    def head_for(self, tokens: slice | Tensor, quantize: Quantization | None = None) -> Rule:
        """Returns a head for these tokens alone; rows of a slice are shared, others copied."""
        warp, output = self._known(), self._output
        if isinstance(output, QuantizedLinear):
            part = output.take(tokens)
            if quantize is not None and part.bits != BITS[quantize]:
                part = round_linear(part.blocks.values(), part.bias, quantize)
            return PartialHead(part, part, warp)
        if not isinstance(output, nn.Linear) or not output.weight.is_floating_point():
            raise CompositionError(
                f"the LM head of {self._name}, {type(output).__name__}, has no rows to choose from; use the head full"
            )
        if output.weight.is_meta:
            raise CompositionError(
                f"accelerate keeps the LM head of {self._name} elsewhere, so no rows can be taken; use the head full"
            )
        weight = output.weight.detach()[tokens]
        bias = None if output.bias is None else output.bias.detach()[tokens]
        if quantize is not None and rounds("the LM head", quantize, weight.device) and weight.shape[1] % BLOCK == 0:
            part = round_linear(weight, bias, quantize)
            return PartialHead(part, part, warp)
        fast = self._head.take(tokens) if isinstance(self._head, QuantizedLinear) else None
        return PartialHead(HeadRows(weight, bias), fast, warp)

    def _known(self) -> Rule:
        """Returns the element-wise function from the LM head's output to the logits."""
        if self._warp is None:
            raise CompositionError(
                f"the LM head of {self._name} cannot be shared: its logits are not its head's output under "
                "any rule that specframe knows; take a drafter with a head of its own"
            )
        return self._warp


@dataclass(frozen=True)
class HeadRows:
    """Rows of an LM head in floating point."""

    weight: Tensor  # [T, D]
    bias: Tensor | None = None  # [T]

    def __call__(self, features: Tensor) -> Tensor:
        """[..., D] -> [..., T]."""
        return nn.functional.linear(features, self.weight, self.bias)

    def on(self, device: torch.device) -> HeadRows:
        """A copy on a device."""
        bias = None if self.bias is None else self.bias.to(device, copy=True)
        return HeadRows(self.weight.to(device, copy=True), bias)


class PartialHead:
    """Head for some tokens, through which gradients flow to the features.

    Args:
        floats: the LM head of these tokens, [..., D] -> [..., T].
        packed: the native form, used without gradients; None: `floats` is always used.
        warp: the model's function from the LM head's output to logits.
    """

    def __init__(self, floats: Rule, packed: QuantizedLinear | None, warp: Rule) -> None:
        self._floats, self._packed, self._warp = floats, packed, warp

    def __call__(self, features: Tensor) -> Tensor:
        """[..., D] -> [..., T]."""
        if self._packed is None or torch.is_grad_enabled():
            return self._warp(self._floats(features))
        return self._warp(self._packed.product(features))

    def on(self, device: torch.device) -> PartialHead:
        """Returns a copy on a device. Raises CompositionError for quantized blocks, which stay on a CPU."""
        if isinstance(self._floats, HeadRows):
            packed = self._packed if device.type == "cpu" else None
            return PartialHead(self._floats.on(device), packed, self._warp)
        if device.type != "cpu":
            raise CompositionError(
                "a quantized LM head computes on a CPU; take a target that is not quantized, or a head without "
                "`quantize`"
            )
        return self

    @property
    def matrix(self) -> QuantizedLinear | None:
        """Returns the matrix by which features are multiplied to get logits; None if logits are no such product."""
        return self._packed if self._warp is unchanged else None


def embedding_rules(config: Any, decoder: nn.Module) -> Iterator[Rule]:
    """Yields the transformations that models apply to a token embedding before the first layer, most specific first."""
    project = getattr(decoder, "project_in", None)
    if isinstance(project, nn.Module):
        yield project
    if factor := getattr(config, "embedding_multiplier", None):
        yield lambda states: states * factor
    if "gemma" in config.model_type:
        root = config.hidden_size**0.5
        yield lambda states: states * torch.tensor(root, dtype=states.dtype, device=states.device)
    yield unchanged


def logit_rules(config: Any) -> Iterator[Rule]:
    """Yields the transformations that models apply to the LM head's output, most specific first."""
    if cap := getattr(config, "final_logit_softcapping", None):
        yield lambda logits: torch.tanh(logits / cap) * cap
    if scale := getattr(config, "logit_scale", None):
        yield lambda logits: logits * scale
    if scaling := getattr(config, "logits_scaling", None):
        yield lambda logits: logits / scaling
        yield lambda logits: logits * scaling
    yield unchanged


def unchanged(values: Tensor) -> Tensor:
    """Returns the values unchanged: the case of most models."""
    return values


def _choose(rules: Iterator[Rule], raw: Tensor, wanted: Tensor, view: Callable[[Tensor], Tensor]) -> Rule | None:
    wanted = view(wanted).float()
    # In half precision, another order of operations may round differently.
    tolerance = 2e-2 if raw.dtype in (torch.bfloat16, torch.float16) else 1e-4
    for rule in rules:
        states = view(rule(raw)).float()
        if states.shape == wanted.shape and (states - wanted).norm() <= tolerance * wanted.norm():
            return rule
    return None


@torch.no_grad()
def _listen(model: nn.Module, decoder: nn.Module, first: nn.Module, probe: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the first layer's input, the decoder's output and the logits for the probe, [2, 1, ...] each."""
    captured: dict[str, Tensor] = {}

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        captured["entry"] = args[0] if args else kwargs["hidden_states"]

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        captured["last"] = output if isinstance(output, Tensor) else output[0]

    handles = [
        first.register_forward_pre_hook(enter, with_kwargs=True),
        decoder.register_forward_hook(leave),
    ]
    try:
        logits = model(probe, use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return captured["entry"], captured["last"], logits
