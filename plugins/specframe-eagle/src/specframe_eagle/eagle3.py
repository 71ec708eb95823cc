"""EAGLE-3's drafter: several of the target's features fused, and an LM head of its own over a draft vocabulary."""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from specframe import CompositionError, InputError, WeightsError
from specframe.neural import (
    Export,
    NeuralDrafter,
    Quantization,
    TapFusion,
    TextWindow,
    checkpoint,
    layer_config,
    native_fusion,
    native_norm,
    round_layers,
    seeded,
    support_of,
)
from specframe.plugin import Trainable
from specframe_eagle import engines3, fitting3
from specframe_eagle.layout3 import D2T, LM_HEAD, T2D, Layout3
from specframe_eagle.published import EMBEDDING, is_embedding_of
from specframe_eagle.wide import Kind, Switches, Wide, published_taps
from specframe_eagle.width import checked_width, with_width

if TYPE_CHECKING:
    from collections.abc import Iterable

    from specframe.plugin import Head, NeuralTarget, Teacher

log = logging.getLogger(__name__)


class Eagle3(NeuralDrafter[Wide]):
    """The drafter of Li et al. 2025 (EAGLE-3), with the switches of EAGLE-3.1 and of the engines that serve it.

    The outputs of three target layers are fused into a state. A decoder layer computes the next state from the state
    and the next token, and the normed state goes to an LM head. States do not imitate features of the target, so
    training uses tokens alone and is unrolled as in drafting (rollout `training-time-test`).

    The LM head is initialised with the rows of `head` and trained with the rest. With `own_head: false` it is `head`
    itself: the target's, frozen and not stored. A loaded drafter follows its checkpoint; those of the authors, of
    SpecForge, vLLM, SGLang and speculators load unchanged once they are converted to safetensors.

    Args:
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: how states become logits, and over which tokens; none: the target's own head.
        own_head: whether a new drafter's LM head is a copy to be trained; a loaded one follows its checkpoint.
        layer: the decoder layer of a new drafter; none: qwen3 for a Qwen3 target, llama for others.
        layers: a new drafter's number of decoder layers; a loaded one follows its checkpoint.
        taps: the target's layers that a new drafter reads, counted from 0; none: 1, L / 2 - 1 and L - 4.
        fc_norm: whether each of a new drafter's taps has a norm (EAGLE-3.1); a loaded drafter follows its checkpoint in
            this and the next switches.
        norm_output: whether the state fed back has passed the norm before the LM head (EAGLE-3.1).
        norm_before_residual: whether the residual starts at the normed state (vLLM alone serves it).
        norm_before_fc: whether all taps together pass one norm.
        intermediate_size: inner width of a new drafter's MLP; none: the target's. A loaded one follows its checkpoint.
        window: number of newest committed tokens that a draft sees, in addition to the first `sinks`: constant memory,
            and positions as in short texts; none: all tokens; a loaded drafter may have a window of its own.
        sinks: the first tokens of a text that stay visible with a window.
        quantize: its linear layers in 4 or 8 bits while it decodes on a CPU; saved unrounded.
        compile: whether torch.compile computes its decoder layers while it decodes; not with `quantize` on a CPU.
    """

    name = "eagle3"
    forms: tuple[str, ...] = engines3.FORMS
    bare: ClassVar[tuple[str, ...]] = ("norm_before_residual", "norm_output")
    """Switches without tensors: a checkpoint of the other setting loads without an error."""

    def __init__(
        self,
        *,
        weights: str | None = None,
        head: Head | None = None,
        own_head: bool = True,
        layer: Kind | None = None,
        layers: int = 1,
        taps: list[int] | None = None,
        fc_norm: bool = False,
        norm_output: bool = False,
        norm_before_residual: bool = False,
        norm_before_fc: bool = False,
        intermediate_size: int | None = None,
        window: int | None = None,
        sinks: int = 4,
        quantize: Quantization | None = None,
        compile: bool = False,
    ) -> None:
        if taps is not None and (not taps or min(taps) < 0 or len(set(taps)) < len(taps)):
            raise InputError(f"{self.name}: taps must be different layers, counted from 0, not {taps}")
        if own_head and isinstance(head, Trainable):
            raise CompositionError(
                f"{self.name}: a head with weights of its own is trained by itself, and not copied; "
                "give own_head: false"
            )
        if layers < 1:
            raise InputError(f"{self.name}: layers must be at least 1, not {layers}")
        super().__init__(weights=weights, head=head, quantize=quantize, compile=compile)
        self.count = layers
        self.window, self.promise = TextWindow.checked(self.name, window, sinks), replace(self.promise, window=window)
        self.own_head = own_head
        self.layer = layer
        self.inner = checked_width(self.name, intermediate_size)
        self.reads = taps
        self.switches = Switches(fc_norm, norm_output, norm_before_residual, norm_before_fc)
        self._source = head
        self._layout: Layout3 | None = None

    def untrained(self, vocab: int) -> Self:
        """Returns a copy of this drafter without weights, for a target of `vocab` tokens and any number of layers."""
        self.head = self._source
        drafter = super().untrained(vocab)
        drafter._source, drafter.reads, drafter._layout = drafter.head, None, None
        return drafter

    def build(self, target: NeuralTarget) -> Wide:
        """Returns a new network for the target."""
        config = target.config
        kind: Kind = self.layer or ("qwen3" if config.model_type == "qwen3" else "llama")
        taps = published_taps(config.num_hidden_layers) if self.reads is None else tuple(self.reads)
        head, support = self._copied(target) if self.own_head else (None, None)
        rows = None if head is None else len(head)
        shape = with_width(layer_config(config, kind, self.count), self.inner)
        self._layout = Layout3(shape, taps, self.switches, support=support, rows=rows)
        return Wide(self._layout.shape, taps, self.switches, head, support)

    def load(self, target: NeuralTarget, weights: str) -> Wide:
        """Loads the network of a published checkpoint, which may differ from a new one's."""
        self._layout = layout = Layout3.read(weights, target.config)
        self.check_layout(layout, weights)
        if self.window is None and layout.window is not None:
            self.window = TextWindow(layout.window, 0)
        rows = None if layout.rows is None else torch.zeros(layout.rows, layout.shape.hidden_size)
        network = seeded(lambda: Wide(layout.shape, layout.taps, layout.switches, rows, layout.support), target)
        module = Published3(network, layout, target)
        checkpoint.load(module, weights)
        if EMBEDDING in layout.names and not is_embedding_of(target, table := module.embed_tokens.weight):
            network.embedding = nn.Embedding.from_pretrained(table.detach().to(target.device, target.dtype))
            log.info("the drafter in %s has a token embedding of its own", weights)
        return network

    def round(self, network: Wide, quantization: Quantization) -> Wide:
        """Returns a quantized copy of the network whose norms are native, the last one as in whole native drafts."""
        rounded = round_layers(network, quantization)
        if rounded.native is not None and rounded.layer.packed is not None:
            rounded.norm, rounded.fusion = native_norm(rounded.norm), native_fusion(rounded.fusion)
        return rounded

    def check_layout(self, layout: Layout3, weights: str) -> None:
        """Raises WeightsError if a checkpoint lacks something that the recipe requests."""
        wanted = [switch.name for switch in fields(Switches) if getattr(self.switches, switch.name)]
        if missing := [name for name in wanted if not getattr(layout.switches, name)]:
            raise WeightsError(f"the drafter in {weights} has no {', '.join(missing)}: leave the option out")
        if self.count not in (1, stored := layout.shape.num_hidden_layers):
            raise WeightsError(f"the drafter in {weights} has {stored} layers, not {self.count}: leave layers out")
        if self.inner not in (None, stored := layout.shape.intermediate_size):
            raise WeightsError(
                f"the MLP of the drafter in {weights} is {stored} wide, not {self.inner}: leave intermediate_size out"
            )
        if self.reads is not None and tuple(self.reads) != layout.taps:
            raise WeightsError(f"the drafter in {weights} reads the layers {list(layout.taps)}, not {self.reads}")
        if not self.own_head and layout.rows is not None:
            raise WeightsError(f"the drafter in {weights} has an LM head of its own: leave own_head out")

    def bind(self, target: Any) -> None:
        """Builds the network in the target's shape, or loads it; see `NeuralDrafter.bind`."""
        self.head = self._source
        super().bind(target)
        if self.network.lm_head is not None:
            self.head = None  # its rows were copied, or the checkpoint has other rows

    def fit(self, teachers: Iterable[Teacher]) -> float:
        """Initialises a new drafter by a linear regression on texts; returns the explained share (`fitting3`)."""
        self.target.request(frozenset({"last"}))  # the regression predicts it; the drafter may not read it
        return fitting3.fit(self.network, self.target, teachers)

    def store(self, folder: Path) -> None:
        """Writes config.json and model.safetensors in the form that vLLM and SGLang read.

        A new drafter is stored in bfloat16, a loaded one in its own dtype.
        """
        layout = self.layout
        checkpoint.save(Published3(self.network, layout, self.target), layout.config, folder, layout.dtype)

    def alternatives(self) -> dict[str, Self]:
        """Returns variants with each tensor-free switch reversed, and with all reversed: programs' defaults differ."""
        found = {}
        for count in range(1, len(self.bare) + 1):
            for names in combinations(self.bare, count):
                twin, switches = self.twin(), self.network.switches
                other = {name: not getattr(switches, name) for name in names}
                twin.network.switch(replace(switches, **other))
                found[", ".join(f"{name}: {str(on).lower()}" for name, on in other.items())] = twin
        return found

    @property
    def layout(self) -> Layout3:
        """Returns what a checkpoint stores besides the network's values. Raises CompositionError before bind."""
        if self._layout is not None:
            return self._layout
        raise CompositionError(f"drafter {self.name} was used before bind(target)")

    def export(self, form: str) -> Export:
        """Returns the drafter in the form of vLLM, SGLang, speculators or the authors' code.

        Raises WeightsError if the form has no place for it.
        """
        return engines3.export(form, self.published(), self.layout, self.target, self.support)

    def published(self) -> dict[str, Tensor]:
        """Returns the tensors that a new drafter stores: the network and the LM head it reads, without token maps."""
        found = Published3(self.network, replace(self.layout, names=frozenset()), self.target).state_dict()
        found.pop(D2T, None)
        found.pop(T2D, None)
        if LM_HEAD not in found:
            found[LM_HEAD] = self.rows()
        return found

    @torch.no_grad()
    def rows(self) -> Tensor:
        """Returns the rows of its LM head, [v, H]: its own, or those of the target's that it reads."""
        own = self.network.lm_head
        return self._read_off(self.target) if own is None else own.weight

    def _copied(self, target: NeuralTarget) -> tuple[Tensor, Tensor | None]:
        """Returns the initial rows of a new LM head, [v, H], and their tokens."""
        if self._source is not None:
            self._source.bind(target)
        return self._read_off(target), support_of(self._source)

    @torch.no_grad()
    def _read_off(self, target: NeuralTarget) -> Tensor:
        """Returns the weight [v, H] of the given head, or of the target's, by applying it to unit vectors."""
        head = target.head if self._source is None else self._source
        units = torch.eye(target.config.hidden_size, device=target.device, dtype=target.dtype)
        return (head(units) - head(torch.zeros_like(units[:1]))).T


class Published3(nn.Module):
    """A network under the published names, with the optional parts that the layout's file has.

    A new drafter's layer is called `midlayer`, as in the authors' code; vLLM and SGLang accept this and `layers.0`.
    Several layers are `layers.0` and so on.
    """

    numbered: ClassVar[bool] = False
    """True if a new drafter's only layer is called `layers.0`, too."""

    def __init__(self, network: Wide, layout: Layout3, target: NeuralTarget) -> None:
        super().__init__()
        names, loaded = layout.names, bool(layout.names)
        fusion = network.fusion
        if isinstance(fusion, TapFusion):
            self.fc: nn.Module = fusion.fc
            self.fc_norm = fusion.norms
        else:
            *before, self.fc = fusion.children()
            if before:
                self.input_norm = before[0]
        parts = {str(place): layer for place, layer in enumerate(network.layer.layers)}
        if any(name.startswith("midlayer.") for name in names) or not (
            self.numbered or len(parts) > 1 or any(name.startswith("layers.") for name in names)
        ):
            self.midlayer = parts.pop("0")
        self.layers = nn.ModuleDict(parts)
        self.norm = network.norm
        vocab = layout.shape.vocab_size
        if network.lm_head is not None:
            self.lm_head = network.lm_head
            support = torch.arange(vocab) if layout.support is None else layout.support.cpu()
            if D2T in names if loaded else layout.support is not None:
                self.register_buffer(D2T, support - torch.arange(len(support)))
            if T2D in names if loaded else layout.support is not None:
                self.register_buffer(T2D, torch.zeros(vocab, dtype=torch.bool).index_fill(0, support, True))
        if EMBEDDING in names or network.embedding is not None:
            with torch.no_grad():
                tokens = torch.arange(vocab, device=target.device).clamp(max=target.config.vocab_size - 1)
                table = network.embedded(target.embed)(tokens).to(layout.dtype)
            self.embed_tokens = nn.Embedding.from_pretrained(table.clone())
