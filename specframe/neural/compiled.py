"""Forward passes by torch.compile for a few shapes: a target's trees, and a drafter's decoder layers."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._python_dispatch import _get_current_dispatch_mode
from transformers.cache_utils import Cache

from specframe.kernel.errors import first_line
from specframe.neural.blocks import Queries
from specframe.neural.cache import SlotCache, SlotLayer
from specframe.neural.forward import agree
from specframe.neural.layer import DecoderLayer

log = logging.getLogger(__name__)
SHAPES = 64
"""The most shapes of a model's forward pass that are compiled; further ones run eagerly."""
NARROWEST = 256
LONGEST = 64
"""The most queries per row of a drafter's compiled pass; most prompts have more and run eagerly."""
VariantT = TypeVar("VariantT", bound=Hashable)


def power(count: int) -> int:
    """The power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


def width_of(positions: int) -> int:
    """Returns the number of positions to allocate, all of them visible to a compiled forward pass."""
    return max(power(positions), NARROWEST)


class FixedCache(Cache):
    """Keys and values of every layer, [B, H, S, D] each, written at the slots in a tensor.

    Layer `index` has its keys in plane 2 * index and its values in the next. The slots are [T] int64, the same for
    every row, or [B, T].
    """

    def __init__(self, planes: Sequence[Tensor], slots: Tensor) -> None:
        super().__init__(layers=[])
        self._planes = planes
        self._slots = slots

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes [B, H, T, D]; returns all slots, [B, H, S, D]: the mask decides which of them a query sees."""
        keys, values = self._planes[2 * layer_idx], self._planes[2 * layer_idx + 1]
        for plane, states in ((keys, key_states), (values, value_states)):
            if self._slots.dim() == 1:
                plane.index_copy_(2, self._slots, states)
            else:
                plane.scatter_(2, self._slots[:, None, :, None].expand_as(states), states)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions are always given."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """The number of keys that a query may see, and the position of the first."""
        return self._planes[0].shape[2], 0


class Steps(Generic[VariantT]):
    """The compiled forward passes of a model, each compiled when it is first needed.

    Args:
        name: the model's name in messages.
        make: returns the pass of a variant as a function of tensors alone: its inputs and the planes of its cache.
        backend: the backend of torch.compile.
    """

    def __init__(self, name: str, make: Callable[[VariantT], nn.Module], backend: str = "inductor") -> None:
        self.refused = False
        """True if the model could not be compiled, or its compiled pass gave other results."""
        self._name, self._make, self._backend = name, make, backend
        self._steps: dict[VariantT, Callable[..., tuple[Tensor, ...]]] = {}
        self._checked: set[tuple[object, ...]] = set()

    @property
    def ready(self) -> bool:
        """True if steps may run: nothing was refused, and no dispatch mode needs to see every operator."""
        return not self.refused and _get_current_dispatch_mode() is None

    def run(
        self, variant: VariantT, inputs: tuple[Tensor, ...], planes: list[Tensor], eager: Callable[[], Tensor]
    ) -> tuple[Tensor, ...] | None:
        """Runs a step, with padding; returns None, with a warning, if it cannot be compiled or differs from `eager`.

        Each input is [rows, nodes, ..] or [rows]. `eager` returns the expected first output, without padding, and is
        called only for the first step of a shape.
        """
        rows, nodes = inputs[0].shape[:2]
        shape = (variant, *planes[0].shape, rows, nodes)
        if shape in self._checked:
            return self._call(variant, inputs, planes)
        if len(self._checked) == SHAPES:
            return None
        expected = eager()
        batch, count = expected.shape[:2]
        width = planes[0].shape[2]
        log.warning(
            "compile: a forward pass of %s over %d x %d nodes in %d positions ..", self._name, *shape[-2:], width
        )
        most = 8 * SHAPES  # the limit counts all models in this process
        try:
            limits = torch._dynamo.config.patch(recompile_limit=most, accumulated_recompile_limit=most)
            with limits, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's hints, such as TensorFloat32, which would round
                outputs = self._call(variant, inputs, planes)
        except Exception as error:  # of many kinds: a graph that breaks, no compiler, a disk that is full
            self._refuse(f"cannot be compiled ({type(error).__name__}: {first_line(error)})")
            return None
        if not agree(outputs[0][:batch, :count], expected):
            self._refuse("computes something else when it is compiled")
            return None
        self._checked.add(shape)
        return outputs

    def _call(self, variant: VariantT, inputs: tuple[Tensor, ...], planes: list[Tensor]) -> tuple[Tensor, ...]:
        graphs = inputs[0].device.type == "cuda" and self._backend == "inductor"
        if variant not in self._steps:
            mode = "reduce-overhead" if graphs else None
            step = self._make(variant)
            self._steps[variant] = torch.compile(step, dynamic=False, fullgraph=True, backend=self._backend, mode=mode)
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        outputs = self._steps[variant](*inputs, *planes)
        return tuple(values.clone() for values in outputs) if graphs else outputs  # a replay overwrites a graph's

    def _refuse(self, why: str) -> None:
        log.warning("compile: %s %s, so its forward pass is not compiled", self._name, why)
        self.refused = True


class StaticLayers(nn.Module):
    """A drafter's decoder layers as a function of tensors alone.

    Args:
        layer: the decoder layers.
        masks: the number of masks: one for all layers, or one for the last layer and one for the others.
    """

    def __init__(self, layer: DecoderLayer, masks: int) -> None:
        super().__init__()
        self.layer = layer
        self._masks = masks

    def forward(self, inputs: Tensor, positions: Tensor, slots: Tensor, *others: Tensor) -> tuple[Tensor]:
        """The last layer's output [B, T, P].

        Args:
            inputs: [B, T, D].
            positions: [B, T] int64.
            slots: [B, T] int64, at which their keys and values are written.
            others: the masks, [B, T, S] bool each, and the planes of the cache.
        """
        masks, planes = others[: self._masks], others[self._masks :]
        before = masks[1][:, None] if self._masks == 2 else None
        return (self.layer(inputs, positions, masks[0][:, None], FixedCache(planes, slots), before),)


class CompiledLayers:
    """A drafter's decoder layers by torch.compile.

    Rows and queries are padded to powers of two, and a query's visible slots are those of the whole cache, a power of
    two. The first pass, which fills the cache with a prompt, runs eagerly.
    """

    def __init__(self, name: str, backend: str = "inductor") -> None:
        self.name, self.backend = name, backend
        self._made: tuple[DecoderLayer, Steps[int]] | None = None

    def steps(self, layer: DecoderLayer) -> Steps[int]:
        """The compiled steps of these layers, by the number of masks; only the latest layers' are cached."""
        if self._made is None or self._made[0] is not layer:
            self._made = layer, Steps[int](self.name, lambda masks: StaticLayers(layer, masks), self.backend)
        return self._made[1]

    def run(self, layer: DecoderLayer, queries: Queries, cache: SlotCache) -> Tensor:
        """The outputs of queries, [B, T, P], over an aimed cache; computed eagerly if no compiled step can."""
        batch, count, _ = queries.inputs.shape
        steps, outputs, last = self.steps(layer), None, cache.layers[-1]
        started = isinstance(last, SlotLayer) and last.is_initialized and cache.row == 0
        if started and count <= LONGEST and steps.ready:
            rows, nodes = min(power(batch), cache.rows or 1), power(count)
            cache.grow(cache.width + nodes - count)
            with torch.inference_mode():  # always, so that no shape is compiled twice
                planes, inputs = cache.planes(rows), padded(queries, cache, rows, nodes)
                outputs = steps.run(len(inputs) - 3, inputs, planes, lambda: queries.run(layer, cache))
        return queries.run(layer, cache) if outputs is None else outputs[0][:batch, :count]


def padded(queries: Queries, cache: SlotCache, rows: int, nodes: int) -> tuple[Tensor, ...]:
    """The inputs of `StaticLayers`, padded in rows and queries; padding writes to free slots and sees only these."""
    batch, count, _ = queries.inputs.shape
    more_rows, more = rows - batch, nodes - count
    own = torch.arange(cache.width - count, cache.width + more, device=queries.inputs.device).repeat(rows, 1)
    slots = cache.slots
    own[:batch, :count] = slots if isinstance(slots, Tensor) else torch.arange(slots, slots + count, device=own.device)
    masks = [queries.mask] if queries.before is None else [queries.mask, queries.before]
    padded_masks = []
    for mask in masks:
        sees = pad(mask, (0, cache.capacity - cache.width, 0, more, 0, more_rows))
        for padding in (slice(batch, None), slice(None)), (slice(None), slice(count, None)):
            sees[padding].scatter_(2, own[padding][..., None], True)
        padded_masks.append(sees)
    inputs = pad(queries.inputs, (0, 0, 0, more, 0, more_rows))
    return inputs, pad(queries.positions, (0, more, 0, more_rows)), own, *padded_masks
