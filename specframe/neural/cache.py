"""A KV cache that writes at given slots: no concatenation, no copies, rejected nodes overwritten.

transformers' own caches append. Tree decoding needs more: a row's tokens are written at chosen slots, and only the
accepted path of a forward pass stays. Here all layers share one tensor, so that a path is kept by one copy. The tensor
has room for a fixed number of rows, and is not reallocated while rows come and go.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any
from weakref import proxy

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.dlpack import from_dlpack
from transformers.cache_utils import Cache, CacheLayerMixin

from specframe.kernel.errors import CompositionError
from specframe.native.visibility import Listed, Visibility
from specframe.neural.transfer import move_slots, tensor_on


def cache_name(module: nn.Module) -> str:
    """The name of the argument by which a module of transformers gets its cache.

    It is `cache` from release 5.24 on, and `past_key_values` before and in models written before. A forward pass that
    names neither passes its arguments on to a module of the installed release.
    """
    names = ("cache", "past_key_values")
    if found := [name for name in names if name in inspect.signature(module.forward).parameters]:
        return found[0]
    from transformers.masking_utils import create_causal_mask  # a slow import

    return next(name for name in names if name in inspect.signature(create_causal_mask).parameters)


class SlotCache(Cache):
    """Keys and values at explicit slots per row, for `layers` layers, `capacity` slots and `rows` rows.

    Storage is allocated at the first forward pass, when heads, dtype and device are known (and the number of rows, if
    it is not given), and is zeroed, since a masked slot must hold finite numbers. Call `aim` before every forward pass.
    """

    rewindable = True
    """True if the last committed entries can be dropped."""

    def __init__(
        self, layers: int, capacity: int, rows: int | None = None, widths: Callable[[int], int] | None = None
    ) -> None:
        """A cache of `capacity` slots, or of `widths(capacity)` if `widths` is given."""
        self._slot_layers = [SlotLayer(self, index) for index in range(layers)]
        super().__init__(layers=list(self._slot_layers))
        self._widths = widths
        self.capacity = capacity if widths is None else widths(capacity)
        self.rows = rows
        self.slots: int | Tensor = 0
        self.width = 0
        self.row = 0
        self.listed: Listed | None = None
        self.guarded = False
        """True if the last row holds entries read ahead of an admission: it must not be written as padding."""
        self._reached = 0  # slots from here on are zero in every row
        self._blocks: list[Tensor] = []  # each [P, B, H, S, D]; one block when all shapes agree
        self._planes: dict[int, list[Tensor]] = {}  # by rows

    def aim(self, slots: int | Tensor, width: int, row: int = 0) -> None:
        """Sets the slots that the next forward pass writes, and that it sees the slots 0 .. width - 1.

        `slots` is a tensor [B, T], or the first of T consecutive slots that are the same in every row, which is
        faster. The mask decides what a query sees within the width. The batch of the pass is the rows from `row` on.
        """
        self.slots = slots
        self.width = width
        self.row = row
        self.listed = None
        self._reached = max(self._reached, width)

    def aim_at(self, visibility: Visibility, row: int) -> None:
        """Sets the slots that the next forward pass sees and writes."""
        self.aim(visibility.slots, visibility.end, row)
        self.listed = visibility if isinstance(visibility, Listed) else None

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Receives each row's accepted path, the root first; does nothing, since `compact` moves the entries."""

    def clear(self) -> None:
        """Zeroes the written slots; the storage stays."""
        for block in self._blocks:
            block[:, :, :, : self._reached] = 0
        self._reached = 0

    def compact(self, source: Tensor, destination: int | Tensor) -> None:
        """Copies the slots source [B, J] in every layer, all reads before all writes.

        `destination` is a tensor [B, J], or the first of J consecutive slots that are the same in every row.
        Destinations of a row must differ unless their source is the same.
        """
        if source.is_cpu:
            if isinstance(destination, int):
                destination = torch.arange(destination, destination + source.shape[1]).expand_as(source)
            self.move(source.tolist(), destination.tolist())
            return
        if isinstance(destination, int):
            end = destination + source.shape[1]
            if len(source) == 1:  # one row: plain copies take a fifth of the time of a gather and a scatter
                for block in self._blocks:
                    block[:, :1, :, destination:end] = block[:, :1].index_select(3, source[0])
                return
            destination = torch.arange(destination, end, device=source.device).expand_as(source)
        rows = torch.arange(len(source), device=source.device)[:, None]  # [B, 1]
        for block in self._blocks:
            block[:, rows, :, destination] = block[:, rows, :, source]  # [B, J, P, H, D]

    def move(self, sources: Sequence[Sequence[int]], destinations: Sequence[Sequence[int]]) -> None:
        """Copies slots of each row in every layer, as `compact` does."""
        for (row, pair), block in product(enumerate(zip(sources, destinations, strict=True)), self._blocks):
            move_slots(block, row, *pair)

    def keep(self, rows: Tensor, width: int | None = None) -> None:
        """Moves these rows, int64 [R], to the rows 0 .. R - 1.

        Only rows that change place are copied: their first `width` slots, or all that were written.
        """
        moved = [(place, row) for place, row in enumerate(rows.tolist()) if place != row]
        if not moved:
            return
        width = self._reached if width is None else width
        places, sources = zip(*moved, strict=True)
        if set(places).isdisjoint(sources):
            for block in self._blocks:
                for place, source in moved:
                    block[:, place, :, :width] = block[:, source, :, :width]
            return
        to, source = tensor_on(rows.device, places), tensor_on(rows.device, sources)
        for block in self._blocks:
            block[:, to, :, :width] = block[:, source, :, :width]

    def copy_row(self, source: int, destination: int, width: int) -> None:
        """Copies the first `width` slots of a row to another, in every layer."""
        if source != destination:
            for block in self._blocks:
                block[:, destination, :, :width] = block[:, source, :, :width]

    def choose(self, row: int, slots: Tensor) -> None:
        """Moves these slots [layers or 1, R, H or 1, K] of the rows from `row` on to the first K, in every layer."""
        layers, rows = len(self.layers), slice(row, row + slots.shape[1])
        for plane, states in enumerate(self.every[:, rows]):  # [R, H, S, D]
            chosen = slots[plane // 2 if len(slots) == layers else 0][..., None]
            states[:, :, : slots.shape[3]] = states.gather(2, chosen.expand(-1, states.shape[1], -1, states.shape[3]))

    def put_row(self, memory: Tensor, row: int) -> None:
        """Writes keys and values of all layers, [2 * layers, H, L, D], to the first L slots of a row."""
        width = memory.shape[2]
        self.storage(memory[:1])[:, row, :, :width] = memory
        self._reached = max(self._reached, width)

    def reserve(self, end: int, most: int | None = None) -> None:
        """Makes room for the slots below `end`: doubles the capacity, up to `most` if that is enough."""
        if end > self.capacity:
            wanted = max(end, 2 * self.capacity)
            self.grow(wanted if most is None else max(end, min(wanted, most)))

    def grow(self, capacity: int) -> None:
        """Makes room for at least `capacity` slots and keeps the written ones. It copies, so grow in large steps."""
        more = capacity - self.capacity
        if more > 0:
            more = more if self._widths is None else self._widths(capacity) - self.capacity
            self.capacity += more
            with torch.inference_mode(False):  # sessions of either mode may follow
                self._replace([pad(block, (0, 0, 0, more)) for block in self._blocks])

    def _replace(self, blocks: list[Tensor]) -> None:
        self._blocks, self._planes = blocks, {}
        for layer in self._slot_layers:
            if layer.is_initialized:
                layer.look()

    def place(self, index: int, keys: Tensor, values: Tensor) -> list[tuple[int, int]]:
        """Returns the storage of layer `index`: a block and a plane in it, for its keys and for its values."""
        if keys.shape == values.shape:
            if not self._blocks:
                self._allocate(2 * len(self.layers), keys)
            if self._blocks[0].shape[2::2] == keys.shape[1::2]:
                return [(0, 2 * index), (0, 2 * index + 1)]
        return [(self._allocate(1, states), 0) for states in (keys, values)]

    def plane(self, place: tuple[int, int]) -> Tensor:
        """The storage at a place: [B, H, S, D]."""
        block, plane = place
        return self._blocks[block][plane]

    def planes(self, rows: int) -> list[Tensor]:
        """The keys and values of all layers in turn, [rows, H, S, D] each, after the first forward pass.

        They share memory with the cache, which torch does not know: a compiler treats each as a separate tensor, and
        need not copy all when one is written. On a CUDA device graphs may rely on their addresses.
        """
        if rows not in self._planes:
            places = (place for layer in self._slot_layers for place in layer.places)
            self._planes[rows] = [from_dlpack(self.plane(place)[:rows]) for place in places]
            if self._blocks[0].device.type == "cuda":
                for plane in self._planes[rows]:
                    torch._dynamo.mark_static_address(plane, guard=False)
        return self._planes[rows]

    def storage(self, sample: Tensor) -> Tensor:
        """All layers' keys and values as one tensor [2 * layers, B, H, S, D], allocated like a sample [B, H, 1, D].

        Layer `index` has its keys in plane 2 * index and its values in the next.
        """
        if not self._blocks:
            self._allocate(2 * len(self.layers), sample)
        return self._blocks[0]

    def open(self, sample: Tensor, nodes: int) -> Any:
        """None: keys and values are not quantized."""

    @property
    def every(self) -> Tensor:
        """All layers' keys and values as one tensor [2 * layers, B, H, S, D], after the first forward pass.

        Raises CompositionError if layers differ in their shapes.
        """
        if len(self._blocks) != 1:
            raise CompositionError("its layers keep keys and values of different shapes, which are not read together")
        return self._blocks[0]

    def _allocate(self, planes: int, states: Tensor) -> int:
        self.rows = self.rows or len(states)
        with torch.inference_mode(False):  # sessions of either mode may follow
            self._blocks.append(states.new_zeros(planes, self.rows, states.shape[1], self.capacity, states.shape[3]))
        return len(self._blocks) - 1


class SlotLayer(CacheLayerMixin):
    """One layer's view of a SlotCache, with the interface that transformers' attention layers expect."""

    is_sliding = False

    def __init__(self, cache: SlotCache, index: int) -> None:
        super().__init__()
        self.cache: SlotCache = proxy(cache)  # weak: a cycle would keep the storage until garbage collection
        self.index = index
        self.places: list[tuple[int, int]] = []

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor | None = None) -> None:
        """Allocates or finds the layer's planes in the cache's storage."""
        values = key_states if value_states is None else value_states
        self.places = self.cache.place(self.index, key_states, values)
        self.look()
        self.is_initialized = True

    def look(self) -> None:
        """Sets `keys` and `values` to views of the cache's storage, [B, H, S, D] each."""
        self.keys, self.values = (self.cache.plane(place) for place in self.places)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Writes [B, H, T, D] at the aimed slots; returns the visible slots, [B, H, width, D], or those listed."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        slots, width, first = self.cache.slots, self.cache.width, self.cache.row
        keys, values = (part[first : first + len(key_states)] for part in (self.keys, self.values))  # [B, H, S, D]
        if isinstance(slots, int):
            end = slots + key_states.shape[2]
            keys[:, :, slots:end] = key_states
            values[:, :, slots:end] = value_states
        else:
            rows = torch.arange(len(slots), device=slots.device)[:, None]  # [B, 1]
            keys[rows, :, slots] = key_states.transpose(1, 2).to(keys.dtype)  # [B, T, H, D]
            values[rows, :, slots] = value_states.transpose(1, 2).to(values.dtype)  # under autocast dtypes may differ
        listed = self.cache.listed
        if listed is None:
            return keys[:, :, :width], values[:, :, :width]
        chosen = listed.listed[self.index % len(listed.listed)].clamp(min=0)[..., None]  # [B, H or 1, K, 1]
        seen = [part.gather(2, chosen.expand(-1, part.shape[1], -1, part.shape[3])) for part in (keys, values)]
        own = [part[:, :, listed.base : width] for part in (keys, values)]
        return torch.cat([seen[0], own[0]], 2), torch.cat([seen[1], own[1]], 2)  # [B, H, K + M, D]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The number of keys that a query may see, and the position of the first."""
        return self.cache.width, 0

    def get_seq_length(self) -> int:
        """Position of the next query: the number of visible slots without those that this pass writes."""
        slots = self.cache.slots
        return slots if isinstance(slots, int) else self.cache.width - slots.shape[1]

    def get_max_length(self) -> int:
        """The capacity."""
        return self.cache.capacity

    get_max_cache_shape = get_max_length  # its name before transformers 5.20
