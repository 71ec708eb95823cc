"""Memory of recurrent layers: a state and a window of the convolution's inputs per row, and the pending tree.

A recurrent state cannot drop a token, so a tree does not change it: a forward pass over a tree stores its inputs here,
and the commit computes one new state per layer from those of the accepted path ("activation replay" of STree, arXiv
2505.14969). Memory grows neither with a row's length nor with the number of nodes times the size of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from specframe.kernel.errors import CompositionError
from specframe.native.visibility import Causal, Tree, Visibility
from specframe.neural.cache import SlotCache
from specframe.neural.transfer import tensor_on

After = Callable[[Tensor, Tensor], Tensor]
"""Function from accepted paths, nodes [B, A] int64 and their lengths [B], to the state after each, [B, ..]."""


@dataclass(frozen=True)
class Ancestry:
    """The paths to the nodes of trees, by depth; computed once per forward pass for all layers."""

    sees: Tensor  # [B, N, N] bool: a node sees its ancestors and itself, and none a later one

    @cached_property
    def depth(self) -> Tensor:
        """Depth of every node, the root's is 0: [B, N] int64."""
        return self.sees.sum(-1) - 1

    @cached_property
    def nodes_by_depth(self) -> Tensor:
        """The node at each depth on the path to every node, [B, N, N]; undefined beyond the node's own depth."""
        nodes = self.sees.shape[-1]
        depth = self.depth[:, None].expand_as(self.sees)
        order = torch.arange(nodes, device=depth.device).expand_as(self.sees)
        spare = torch.where(self.sees, depth, nodes)  # nodes off the path go to a column that is cut off
        return depth.new_zeros(*self.sees.shape[:2], nodes + 1).scatter(2, spare, order)[..., :nodes]

    def windows(self, width: int) -> Tensor:
        """Indices of the last `width` inputs on the path to every node, its own last: [B, N, width].

        They index the `width - 1` inputs before the tree, followed by the tree's.
        """
        back = torch.arange(width - 1, -1, -1, device=self.sees.device)
        return _after(self.nodes_by_depth, self.depth[..., None] - back, width - 1)


def _after(path: Tensor, steps: Tensor, before: int) -> Tensor:
    """Indices of steps of paths [.., A] in `before` inputs followed by the nodes; negative steps index the inputs
    before."""
    return torch.where(steps >= 0, before + path.gather(-1, steps.clamp(min=0)), before + steps)


@dataclass
class RecurrentLayer:
    """Recurrent memory of one layer; its tensors have a row for each of the session's slots."""

    windows: dict[int, Tensor] = field(default_factory=dict)
    """The last inputs of each convolution, [R, C, width - 1]."""
    state: Tensor | None = None
    """The recurrent state, [R, ..]."""
    inputs: dict[int, Tensor] = field(default_factory=dict)
    """The convolutions' inputs at the pending tree's nodes, [B, C, N]."""
    after: After | None = None
    """The state after a path of the pending tree."""

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors with a row per slot."""
        return [*self.windows.values(), *([] if self.state is None else [self.state])]


class RecurrentStates:
    """Memory of a model's recurrent layers, of `rows` rows. Call `aim` before every forward pass."""

    def __init__(self, rows: int) -> None:
        self.layers: dict[int, RecurrentLayer] = {}  # by number; found in the first forward pass
        self.rows = rows
        self.visibility: Causal | Tree = Causal(0, [0])
        self.row = 0
        self.paths: Ancestry | None = None

    def aim(self, visibility: Visibility, row: int) -> None:
        """Sets the visibility of the next forward pass, and its first row.

        Raises CompositionError for single nodes of a draft, since a state follows only texts and whole trees.
        """
        if not isinstance(visibility, Causal | Tree):
            raise CompositionError("recurrent layers read texts and whole trees, not some nodes of a draft")
        self.visibility, self.row = visibility, row
        self.paths = Ancestry(visibility.sees) if isinstance(visibility, Tree) else None

    def layer(self, index: int) -> RecurrentLayer:
        """The memory of a layer."""
        return self.layers.setdefault(index, RecurrentLayer())

    def widen(self, index: int, inputs: Tensor, width: int, which: int = 0) -> Tensor:
        """Inputs [B, C, T] of a convolution of width `width`, preceded by the last ones: [B, C, width - 1 + T].

        The inputs of a text move the window to its end; those of a tree stay pending until the commit.
        """
        layer, (first, last) = self.layer(index), self._span(inputs)
        if which not in layer.windows:
            with torch.inference_mode(False):  # sessions of either mode may follow
                layer.windows[which] = inputs.new_zeros(self.rows, inputs.shape[1], width - 1)
        window = layer.windows[which][first:last]
        if self.paths is not None:
            layer.inputs[which] = inputs
            return torch.cat([window, inputs], 2)
        assert isinstance(self.visibility, Causal)
        whole = torch.cat([window if self.visibility.start else torch.zeros_like(window), inputs], 2)
        ends = tensor_on(inputs.device, self.visibility.lengths)
        places = ends[:, None] + torch.arange(width - 1, device=inputs.device)  # [B, width - 1]
        layer.windows[which][first:last] = whole.gather(2, places[:, None].expand(-1, whole.shape[1], -1))
        return whole

    def before(self, index: int, rows: int) -> Tensor | None:
        """The initial state of the forward pass, [B, ..]; None at the beginning of a text."""
        state = self.layer(index).state
        if state is None or (isinstance(self.visibility, Causal) and not self.visibility.start):
            return None
        return state[self.row : self.row + rows]

    def put(self, index: int, state: Tensor) -> None:
        """Stores the states after the texts of a forward pass; after a tree, the commit computes them."""
        if self.paths is None:
            layer, (first, last) = self.layer(index), self._span(state)
            if layer.state is None:
                with torch.inference_mode(False):
                    layer.state = state.new_zeros(self.rows, *state.shape[1:])
            layer.state[first:last] = state

    def commit(self, accepted: Sequence[Sequence[int]]) -> None:
        """Advances windows and states along each row's accepted path, the root first."""
        rows, longest = len(accepted), max(map(len, accepted))
        device = next((tensor.device for layer in self.layers.values() for tensor in layer.tensors), None)
        paths = tensor_on(device, [[*path, *[0] * (longest - len(path))] for path in accepted])  # [B, A]
        lengths = tensor_on(device, [*map(len, accepted)])
        for layer in self.layers.values():
            for which, inputs in layer.inputs.items():
                window = layer.windows[which]
                before = window.shape[2]
                steps = lengths[:, None] + torch.arange(-before, 0, device=paths.device)  # [B, width - 1]
                places = _after(paths, steps, before)[:, None].expand(-1, window.shape[1], -1)
                window[:rows] = torch.cat([window[:rows], inputs], 2).gather(2, places)
            if layer.after is not None:
                assert layer.state is not None, "a tree follows a prompt"
                layer.state[:rows] = layer.after(paths, lengths)
            layer.inputs, layer.after = {}, None

    def keep(self, rows: Tensor) -> None:
        """Moves these rows, int64 [R], to the rows 0 .. R - 1."""
        for layer in self.layers.values():
            for tensor in layer.tensors:
                tensor[: len(rows)] = tensor[rows]

    def copy_row(self, source: int, destination: int) -> None:
        """Copies a row to another."""
        for layer in self.layers.values():
            for tensor in layer.tensors:
                tensor[destination] = tensor[source]

    def forget(self, rows: Tensor) -> None:
        """Zeroes the rows [R] bool that are True, the state before a text."""
        for layer in self.layers.values():
            for tensor in layer.tensors:
                tensor[: len(rows)][rows] = 0

    def clear(self) -> None:
        """Zeroes all rows; the storage stays."""
        for layer in self.layers.values():
            layer.inputs, layer.after = {}, None
            for tensor in layer.tensors:
                tensor.zero_()

    def _span(self, values: Tensor) -> tuple[int, int]:
        return self.row, self.row + len(values)


class HybridCache(SlotCache):
    """Memory of a model with recurrent layers: keys and values at slots, and recurrent states.

    A layer may have either or both. The methods are those by which transformers' layers write to and read from a cache;
    reads return None, since the forward pass's own functions start scans from these states.
    """

    rewindable = False

    def __init__(
        self, layers: int, capacity: int, rows: int | None = None, widths: Callable[[int], int] | None = None
    ) -> None:
        """Allocates as a `SlotCache` does. `rows` are needed."""
        super().__init__(layers, capacity, rows, widths)
        assert rows is not None, "states are kept for every slot of a session"
        self.states = RecurrentStates(rows)

    def aim_at(self, visibility: Visibility, row: int) -> None:
        """Sets the slots that the next forward pass sees and writes."""
        super().aim_at(visibility, row)
        self.states.aim(visibility, row)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Advances the recurrent states along each row's accepted path, the root first."""
        self.states.commit(paths)

    def keep(self, rows: Tensor, width: int | None = None) -> None:
        """Moves these rows, int64 [R], to the rows 0 .. R - 1: their first `width` slots, and their states."""
        super().keep(rows, width)
        self.states.keep(rows)

    def copy_row(self, source: int, destination: int, width: int) -> None:
        """Copies the first `width` slots of a row to another, and its states."""
        if source != destination:
            super().copy_row(source, destination, width)
            self.states.copy_row(source, destination)

    def clear(self) -> None:
        """Zeroes the written slots and states; the storage stays."""
        super().clear()
        self.states.clear()

    def place(self, index: int, keys: Tensor, values: Tensor) -> list[tuple[int, int]]:
        """Allocates separate storage for a layer's keys and values, since most layers of a hybrid have none."""
        return [(self._allocate(1, states), 0) for states in (keys, values)]

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """None: `update_conv_state` returns the window."""

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """None: the scan has the state."""

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """False: transformers' own step of one token would write into the state."""
        return False

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **more: Any
    ) -> Tensor:
        """A convolution's inputs [B, C, T], preceded by the window of earlier ones: [B, C, width - 1 + T]."""
        assert conv_kernel_size is not None, "a layer names the width of its convolution"
        return self.states.widen(layer_idx, conv_states, conv_kernel_size, state_idx)

    def update_recurrent_state(
        self, recurrent_states: Tensor, layer_idx: int, state_idx: int = 0, **more: Any
    ) -> Tensor:
        """Stores the states after a text; those after a tree are ignored."""
        self.states.put(layer_idx, recurrent_states)
        return recurrent_states
