"""Parts of a loaded model that a target runs and reads: its decoder, layers, features, forward pass and LM head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specframe.components.targets import architectures, pack
from specframe.components.targets.forward import native as native_passes
from specframe.components.targets.forward import recurrence
from specframe.components.targets.forward.layer_subset import device_of, embedding_and_head
from specframe.components.targets.forward.native import CacheForm
from specframe.components.targets.forward.state import State
from specframe.components.targets.forward.taps import Taps
from specframe.components.targets.forward.transformers import TransformersForward
from specframe.components.targets.forward.vision import Vision
from specframe.components.targets.image_processor import ImageProcessor
from specframe.components.targets.native_model import LlamaModel, keep_packed
from specframe.components.targets.shared_head import Sharing
from specframe.components.targets.tokenizer import TokenizerSource
from specframe.kernel.errors import CompositionError, InputError
from specframe.neural.cache import SlotCache
from specframe.neural.forward import Forward, HookedForward
from specframe.neural.quantize import Quantization
from specframe.neural.recurrent import HybridCache
from specframe.neural.split_int8 import SplitInt8Cache
from specframe.neural.weights.origin import TargetIdentity, identify

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Anatomy:
    """The parts of a model. For a model with recurrent layers, of a copy that shares its weights."""

    config: Any
    """The config of its text decoder."""
    decoder: nn.Module
    layers: nn.ModuleList
    taps: Taps
    make_eager: Callable[[], TransformersForward]
    """Function that makes transformers' own forward pass."""
    memory: type[SlotCache]
    """The class of cache for its layers."""
    vision: Vision
    """Inputs that it reads in addition to tokens."""

    @classmethod
    def of(cls, model: Any) -> Anatomy:
        """Takes a model apart. Raises CompositionError for one that cannot be a target."""
        config = architectures.text_config(model.config)
        if isinstance(model, LlamaModel):
            return cls._of_llama(model)
        decoder, layers = architectures.require_layers(model)
        recurrent = bool(recurrence.mixers_of(decoder))
        runs, found = model, (decoder, layers)
        if recurrent:
            runs = recurrence.with_scans(model)
            found = architectures.require_layers(runs)
        vision = Vision.of(runs)
        taps = Taps(found[0], dict(enumerate(found[1])), vision.tokens)
        windows = architectures.takes_masks(decoder, views := architectures.views(config))
        eager = TransformersForward(runs, taps, views, windows)
        memory = HybridCache if recurrent else SlotCache
        return cls(config, decoder, layers, taps, lambda: eager, memory, vision)

    @classmethod
    def _of_llama(cls, model: LlamaModel) -> Anatomy:
        """The parts of a model without a forward pass; transformers' own is built when needed."""
        config, decoder = model.config, model.model
        taps = Taps(decoder, dict(enumerate(decoder.layers)))
        views = architectures.views(config)

        def make() -> TransformersForward:
            inner = model.whole.model
            taps.move(inner, dict(enumerate(inner.layers)))
            return TransformersForward(model.whole, taps, views, architectures.takes_masks(inner, views))

        vision = Vision(config.model_type, frozenset(), frozenset(), None)
        return cls(config, decoder, decoder.layers, taps, make, SlotCache, vision)

    @cached_property
    def eager(self) -> TransformersForward:
        """transformers' own forward pass."""
        return self.make_eager()

    def begin(self, forward: Forward, slots: int, room: int, device: torch.device, before: State | None) -> State:
        """The state of a new session; reuses the storage of the previous one if possible."""
        shape = (slots, room, device, forward.widths)
        if before is not None and before.reopen(*shape):
            return before
        memory = SplitInt8Cache if forward.cache == "int8" else self.memory
        return State(memory, len(self.layers), *shape)

    def require_seeing(self, forward: Forward, inputs: Mapping[str, Tensor]) -> None:
        """Raises InputError for inputs that the model or this forward pass does not support."""
        self.vision.require(inputs)
        if inputs and forward is not self.eager:
            raise InputError(
                "a target with `compile`, `native` or `quantize` reads texts alone: leave it out for images"
            )

    def require_rewindable(self, what: str) -> None:
        """Raises CompositionError if the layers' state cannot drop tokens, which `what` needs."""
        if not self.memory.rewindable:
            raise CompositionError(
                f"{self.config.model_type} cannot {what}: its recurrent layers keep one state for all committed "
                "tokens, and none can be dropped from it; take a drafter that reads tokens or features"
            )


class LoadedModel:
    """A loaded model with its tokenizer, its forward pass, and the parts that drafters share."""

    weights: nn.Module
    """The model, or only its modules if native passes run it."""
    gguf: Path | None
    """The GGUF file of the model, if there is one."""
    quantization: Quantization | None = None
    """Quantization of its matrices."""
    cache: CacheForm | None = None
    """Storage format of its keys and values."""

    def _attach(
        self, model: nn.Module, tokenizer: TokenizerSource, gguf: Path | None = None, forward: Forward | None = None
    ) -> None:
        self.weights, self.gguf = model, gguf
        self.parts = Anatomy.of(model)
        self.config: Any = self.parts.config
        self._taps = self.parts.taps
        self.image_tokens, self.require_inputs = self.parts.vision.tokens, self.parts.vision.require
        if isinstance(forward, TransformersForward) or (forward is None and not isinstance(model, LlamaModel)):
            forward = self.parts.eager  # with taps of its own
        if forward is not None:
            self.computing = HookedForward(forward)
        self.source, self.processor = tokenizer, ImageProcessor(tokenizer)
        self._state: State | None = None
        self.context = architectures.context(self.config)
        self._remember_model()

    def _remember_model(self) -> None:
        self._form, self._modules = self._form_of_model(), self._modules_of_model()

    def _form_of_model(self) -> tuple[int, torch.dtype, torch.device | None, tuple[nn.Module, ...]]:
        """The current vocabulary, dtype, device and layers of the model, on which all parts depend.

        No device for a model with Accelerate's offloading, whose weights move.
        """
        found = architectures.layers(self.weights, self.config)
        device = None if hasattr(self.weights, "_hf_hook") else self.device
        return self.vocab_size, self.dtype, device, () if found is None else tuple(found[1])

    def _modules_of_model(self) -> tuple[nn.Module, ...]:
        """The model's current modules other than the layers."""
        return *self.weights.children(), *self.parts.decoder.children()

    def _follow_model(self) -> None:
        """Adopts modules that were replaced in the model since the last session, such as the LM head.

        Raises InputError if the model's vocabulary, dtype, device or layers changed, or if it has no weights.
        """
        if self.device.type == "meta":
            raise InputError("the target's weights are on the meta device, which holds none: load the model first")
        form, modules = self._form_of_model(), self._modules_of_model()
        if form == self._form and modules == self._modules:
            return
        if form != self._form or self.parts.eager.model is not self.weights:  # recurrent layers run in a copy
            before, now = (f"{size} tokens, {dtype}" for size, dtype, *_ in (self._form, form))
            raise InputError(
                f"the model has changed since this target was made of it ({before}; now {now}): its vocabulary, dtype, "
                "device or modules are others; compose the pipeline again"
            )
        self._modules = modules
        self.parts.eager.follow()
        vars(self).pop("_shared", None)

    @property
    def model(self) -> nn.Module:
        """The transformers model, built on first use if native passes run the target."""
        return self.weights.whole if isinstance(self.weights, LlamaModel) else self.weights

    def _drop_model(self) -> None:
        """Drops the transformers model built around packed weights, until it is needed again."""
        if isinstance(self.weights, LlamaModel):
            self.weights.forget()

    def _is_training(self) -> bool:
        made = vars(self.weights).get("whole", self.weights)
        return bool(made.training)

    @property
    def vocab_size(self) -> int:
        """The current vocabulary size of the model."""
        _, head = embedding_and_head(self.weights)
        size: int = head.out_features
        return size

    @property
    def forward(self) -> Forward:
        """The forward pass: transformers' own, compiled, or native."""
        return self.computing.inner

    def _quantize(self, quantization: Quantization) -> None:
        if not (isinstance(self.weights, LlamaModel) and self.weights.packed is not None):
            pack.quantize(self.weights, quantization, self.gguf)
        self.quantization = quantization
        self._take_native("quantize", native_passes.unfit)

    def _take_native(self, option: str = "native", unfit: native_passes.Unfit = native_passes.unfit_floats) -> None:
        parts = self.config, self.parts.decoder, self.parts.layers
        model: Any = self.weights
        head = model.head if isinstance(model, LlamaModel) else model.get_output_embeddings()
        taken = native_passes.native_forward(head, parts, option, unfit, self.cache)
        if taken is not None:
            taken.find_best()
            self.computing = HookedForward(taken)
            if isinstance(self.weights, LlamaModel):
                keep_packed(self.weights, taken.head, self.quantization)
        elif isinstance(self.weights, LlamaModel):
            self.computing = HookedForward(self.parts.eager)
        self._remember_model()  # with packed modules

    def identify(self) -> TargetIdentity:
        """Identifies the model."""
        return identify(self.weights, self.config, self.source.name)

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The model's tokenizer, loaded on first use; None if its folder holds none."""
        return self.source.get()

    @property
    def device(self) -> torch.device:
        """Device on which its tokens must be."""
        return device_of(embedding_and_head(self.weights)[0])

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its features."""
        return self.weights.dtype  # type: ignore[return-value]

    @property
    def generation_config(self) -> Any:
        """The generation config of transformers that comes with the model, or None."""
        return getattr(self.weights, "generation_config", None)

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a sequence, by the model's generation config."""
        value = (self.generation_config or self.config).eos_token_id
        return frozenset(value if isinstance(value, list) else [] if value is None else [value])

    def embed(self, tokens: Tensor) -> Tensor:
        """The token embeddings as inputs of the first layer (scaled, projected): [...] -> [..., D]."""
        return self._shared.embed(tokens)

    @property
    def embedding_table(self) -> Tensor | None:
        """The embedding table, whose rows `embed` returns, [V, D]; None if there is none."""
        return self._shared.table

    def head(self, features: Tensor) -> Tensor:
        """The logits for features of the tap `last`: [..., D] -> [..., V]. Differentiable."""
        return self._shared.head(features)

    def norm(self, features: Tensor) -> Tensor:
        """The tap `last` for these outputs of the last layer: [..., D] -> [..., D]."""
        return self._shared.norm(features)

    def head_for(self, tokens: slice | Tensor, quantize: Quantization | None = None) -> Callable[[Tensor], Tensor]:
        """The LM head of these tokens alone: a function [..., D] -> [..., T]. Differentiable."""
        return self._shared.head_for(tokens, quantize)

    @cached_property
    def _shared(self) -> Sharing:
        return Sharing(self.weights, self.config, self.parts.decoder, self.parts.layers, self.forward.head)
