"""Weights of a drafting model: loads all or some layers of a checkpoint, and checks that they fit the target."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from specframe.components.drafters.model_training import checked_sizes, fresh_model
from specframe.components.targets import architectures, loading
from specframe.components.targets.forward.layer_subset import HeadModel, take_layers
from specframe.components.targets.forward.native import NativeForward, native_forward, unfit
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.pack import quantize
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Target, text_of
from specframe.kernel.layers import LayerChoice
from specframe.native.blocks import BLOCK
from specframe.neural.cache import SlotCache
from specframe.neural.forward import Forward, GroupedForward, Pass
from specframe.neural.quantize import Quantization

Coarseness = Literal["int3", "int4", "int8"]
"""Quantization of a drafting model's layers; int3 is stored as int4."""
STEPS = {"int3": 7, "int4": 15, "int8": 15}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """A loaded model and its forward passes."""

    reader: HFTarget
    native: NativeForward | None = None
    """The native forward pass of `count` layers; the model's own are `layers`."""
    layers: Sequence[int] = ()
    count: int = 0
    own: bool = True
    """True if the weights are the drafter's own, not the target's."""

    def as_target(self) -> HFTarget:
        """A target with separate state around the same weights and forward pass, whose cache stores queries."""
        target = self.reader.sibling()
        target.computing.inner = self.forward
        target.parts.taps.request_queries()
        return target

    @property
    def forward(self) -> Forward:
        """The forward pass."""
        return self.native or self.reader.forward

    def together(self, count: int, whole: bool) -> Forward | None:
        """The forward pass in which `count` layers at a time share one input, MLPs too if `whole`; None for one."""
        if count == 1:
            return None
        return GroupedForward(self.forward, count, whole, self.planes, self.reader.embed, self._end())

    def _end(self) -> Callable[[Pass, Tensor, SlotCache], Tensor]:
        """The final norm and LM head, for the states after the last layer."""
        if self.native is not None:
            native, nothing = self.native, LayerChoice(*2 * ((False,) * self.planes,))

            def end(asked: Pass, states: Tensor, memory: SlotCache) -> Tensor:
                logits, _ = native.run(replace(asked, states=states, layers=nothing), memory)
                assert logits is not None
                return logits

            return end
        model = HeadModel(self.reader.model)
        return lambda asked, states, memory: asked.selected(model(asked.tokens, states))

    def parts(self, exits: Sequence[int] = ()) -> list[LayerChoice | None]:
        """The layers of each part, given the numbers of layers after which parts end; None: all layers."""
        layers = list(self.layers) if self.native is not None else list(range(self.planes))
        ends = [*exits, len(layers)]
        parts = [layers[start:end] for start, end in zip([0, *exits], ends, strict=True)]
        return [self._choice(part) for part in parts]

    def _choice(self, layers: Sequence[int]) -> LayerChoice | None:
        if len(layers) == self.planes:
            return None
        runs = tuple(layer in layers for layer in range(self.planes))
        return LayerChoice(runs, runs)

    @property
    def planes(self) -> int:
        """Number of layers in the KV cache."""
        return self.count if self.native is not None else int(self.reader.config.num_hidden_layers)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint by name, with its options. Raises InputError for options that do not fit."""

    model: str
    fresh: dict[str, int] | None = None
    """The sizes of a new model instead of a checkpoint."""
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    device: str = "auto"
    revision: str | None = None
    attention: str | None = None
    layers: Sequence[int] | None = None
    quantize: Coarseness | None = None
    group: int = BLOCK

    def __post_init__(self) -> None:
        if self.fresh is not None:
            object.__setattr__(self, "fresh", checked_sizes(self.fresh))
            if self.layers is not None or self.quantize is not None:
                raise InputError(
                    "a fresh model drafter has all layers, in full precision: leave out layers and quantize"
                )
        if self.layers is not None and (not self.layers or list(self.layers) != sorted(set(self.layers))):
            raise InputError(f"a model drafter's `layers` are ascending and at least one, not {list(self.layers)}")
        if self.group < BLOCK or self.group % BLOCK:
            raise InputError(f"a model drafter's `group` is a multiple of {BLOCK}, not {self.group}")
        if self.group != BLOCK and self.quantize is None:
            raise InputError("a model drafter's `group` is how many inputs share a scale: it needs `quantize`")

    def load(self, target: Target | None) -> Loaded:
        """The model; shares the target's weights if it consists of layers of the target's own checkpoint.

        Raises the errors of `HFTarget`, and CompositionError for unsupported layers or quantization.
        """
        if self.fresh is not None and target is not None:
            return Loaded(fresh_model(self.fresh, target))
        if self.layers is not None and isinstance(target, HFTarget) and self._is_that_of(target):
            if (reason := self._unlike(target)) is None:
                return self._shared(target)
            log.warning("drafter model: it loads %s once more, since %s", self.model, reason)
        target_device = None if target is None else text_of(target).device
        device = str(target_device) if self.device == "auto" and target_device is not None else self.device
        whole = HFTarget(
            model=self.model, dtype=self.dtype, device=device, revision=self.revision, attention=self.attention
        )
        native = None if self.quantize is None else self._round(whole, self.quantize)
        return self._taken(whole, native, own=True)

    def _is_that_of(self, target: HFTarget) -> bool:
        found = target.source.checkpoint
        return found is not None and found == (loading.locate(self.model), self.revision)

    def _unlike(self, target: HFTarget) -> str | None:
        """Returns why the target's weights cannot be the drafter's, or None."""
        dtype = str(target.dtype).removeprefix("torch.")
        device = "auto" if self.device == "auto" else str(target.device)
        pairs = [
            ("dtype", self.dtype, "auto" if self.dtype == "auto" else dtype),
            ("device", self.device, device),
            ("quantize", self.quantize, None if self.quantize is None else target.quantization),
            ("group", self.group, BLOCK),
        ]
        for option, mine, theirs in pairs:
            if mine != theirs:
                return f"its {option} is {mine} and the target's {theirs}"
        return None if self.attention is None else "it has an `attention` of its own"

    def _shared(self, target: HFTarget) -> Loaded:
        forward = target.forward
        return self._taken(target.sibling(), forward if isinstance(forward, NativeForward) else None, own=False)

    def _taken(self, whole: HFTarget, native: NativeForward | None, own: bool) -> Loaded:
        count: int = whole.config.num_hidden_layers
        if self.layers is None:
            return Loaded(whole, native, range(count), count, own)
        whole.parts.require_rewindable("draft with some of its layers")
        reader = HFTarget.from_model(take_layers(whole.model, self.layers), whole.tokenizer)
        reader.quantization, reader.context = whole.quantization, whole.context
        return Loaded(reader, native, self.layers, count, own)

    def _round(self, whole: HFTarget, coarseness: Coarseness) -> NativeForward | None:
        """Quantizes the matrices; returns the native forward pass that computes with them, if supported."""
        quantization: Quantization = "int8" if coarseness == "int8" else "int4"
        plain = coarseness == quantization and self.group == BLOCK
        quantize(whole.model, quantization, whole.gguf if plain else None, group=self.group, steps=STEPS[coarseness])
        whole.quantization = quantization
        model: Any = whole.model
        found = architectures.layers(model, whole.config)
        assert found is not None, "a target's layers are in one list"
        return native_forward(model.get_output_embeddings(), (whole.config, *found), "quantize", unfit)


def own(loaded: Loaded) -> Loaded:
    """A copy with its own weights, run by transformers."""
    reader = HFTarget.from_model(deepcopy(loaded.reader.model), loaded.reader.tokenizer)
    reader.quantization = loaded.reader.quantization
    return Loaded(reader)


def trainable(loaded: Loaded, shared: Shared | None) -> nn.Module:
    """The trainable model. Raises CompositionError for a quantized model or another vocabulary size."""
    if shared is not None:
        raise CompositionError(
            "a model drafter that shares a part of its tokens with the target drafts for it, but cannot be trained on "
            "it: train it on a target of its own vocabulary"
        )
    if loaded.reader.quantization is not None:
        raise CompositionError("a model drafter with `quantize` has no weights that can be trained: leave it out")
    return loaded.reader.model.requires_grad_(True)


FAMILY = 0.9
"""Minimum share of the smaller vocabulary that two models of one family have in common."""


@dataclass(frozen=True)
class Shared:
    """The tokens with equal ids in a drafting model and its target."""

    columns: slice | Tensor
    """Columns of the drafting model's logits."""
    support: Tensor | None
    """The tokens, int64 [v]; None: the target's whole vocabulary."""
    vocab: int
    """Size of the target's vocabulary."""
    known: int
    """Vocabulary size of the drafting model; its last token replaces tokens that it lacks."""


def require_fitting(model: HFTarget, target: Target) -> Shared | None:
    """The tokens that the model and the target share; None if their vocabularies are equal.

    Raises CompositionError for a target with another family's tokens, or on another device.
    """
    device = text_of(target).device or model.device
    if device != model.device:
        raise CompositionError(
            f"the drafting model is on {model.device} and the target on {device}; "
            "set the drafter's `device` to the target's"
        )
    mine, theirs = model.vocab_size, target.vocab_size
    ours, other = model.tokenizer, text_of(target).tokenizer
    if ours is None or other is None:
        if mine != theirs:
            raise CompositionError(
                f"the drafting model has {mine} tokens and the target {theirs}, and without the tokenizers of both it "
                "is unknown which of them are the same: give both, or take a model of the target's vocabulary"
            )
        return None
    size = min(mine, theirs)
    texts = [{number: token for token, number in tokenizer.get_vocab().items()} for tokenizer in (ours, other)]
    both = [i for i in range(size) if all(i in text for text in texts)]
    different = [i for i in both if texts[0][i] != texts[1][i]]
    if len(both) - len(different) < FAMILY * len(both):
        raise CompositionError(
            f"the drafting model's tokenizer gives {len(different)} of {len(both)} numbers to other tokens than the "
            "target's; a model drafter needs the target's vocabulary, so take a model that was trained with it"
        )
    if not different:
        return None if mine == theirs else _prefix(size, mine, theirs, device)
    shared = torch.ones(size, dtype=torch.bool)
    shared[different] = False
    tokens = shared.nonzero()[:, 0].to(device)
    return Shared(tokens, tokens, theirs, mine)


def _prefix(size: int, mine: int, theirs: int, device: torch.device) -> Shared:
    return Shared(slice(size), None if size == theirs else torch.arange(size, device=device), theirs, mine)
