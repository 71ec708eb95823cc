"""One forward pass over a KV cache, by all layers or some, of targets and drafting models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from itertools import pairwise
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor, nn

from specframe.kernel.layers import NEWEST_QUERIES, LayerChoice
from specframe.native.visibility import Visibility
from specframe.neural.cache import SlotCache
from specframe.neural.transfer import tensor_on

if TYPE_CHECKING:
    from specframe.kernel.types import TokenTree, Verdict
    from specframe.neural.slot_map import SlotMap

Given = ParamSpec("Given")
Found = TypeVar("Found")
Features = Mapping[str, Tensor]
"""Features [B, T, D] by their taps."""
Keep = Tensor | slice
"""The positions whose logits are computed, as an index of the T: a slice, or indices per row, [B, E] int64."""
EVERY = slice(None)
"""The logits of all positions."""
NONE = slice(0)
"""No logits: the LM head does not run."""
LIMITS = {8: 1e-6, 4: 1e-3}
"""Largest error of a logit, as a share of the largest logit, by the dtype's bytes."""
LOOSE = 2e-1
"""Largest error of a logit below full precision, as a share of the largest logit."""
REROUTED = 0.2
"""Share of the logit vectors that may be off below full precision, at least one: a router may pick another expert at a
near tie, and rounded activations may diverge on random texts."""

GreedyRun = Callable[["TokenTree", "SlotMap", frozenset[str], int], tuple[Features, "Verdict | None"]]
"""A pass over a tree, given rows, taps and the most positions of a row: its features, `best` and `last` among them, and
the verdict that accepts the argmax tokens, or None."""
Output = tuple[Tensor | None, Features]
"""The logits [B, E, V] of the kept positions, None for `NONE`, and the taps' features [B, T, D]."""


@dataclass(frozen=True)
class Pass:
    """One forward pass: its tokens, their positions and visible slots, the layers that run, and the outputs wanted.

    `layer.K` is the output of layer K, counted from 0, as it enters the next; `last` is the LM head's input, after the
    last layer that runs; `best` [B, T] int64 is the first token of the largest logit, -1 where that is not a number.
    `query.K` are the queries of layer K, rotated and scaled, so that their products with keys are the inputs of its
    attention's softmax. For a text only the last `NEWEST_QUERIES` tokens have queries: see `Newest`.
    """

    tokens: Tensor  # [B, T] int64
    positions: Tensor  # [B, T] int64, counted in tokens
    visibility: Visibility
    row: int = 0  # the memory's row of the first row
    states: Tensor | None = None  # [B, T, D], input of the first layer that runs; None: the tokens' embeddings
    layers: LayerChoice | None = None  # layers that are not chosen pass their input on; None: all run
    taps: frozenset[str] = frozenset()  # of the features to return
    rounded: bool = False  # True if layers' features may come in the model's dtype: no layer goes on from them
    keep: Keep = field(default_factory=lambda: EVERY)  # the positions whose logits to return
    places: Tensor | None = None  # [.., B, T] int64, positions passed to the model; None: `positions`
    inputs: Mapping[str, Tensor] = field(default_factory=dict)  # further inputs of the model, such as images

    def selected(self, values: Tensor) -> Tensor:
        """The entries [B, T, ..] of the positions to keep: [B, E, ..]."""
        return values[:, self.keep] if isinstance(self.keep, slice) else gather_each(values, self.keep)

    @property
    def headless(self) -> bool:
        """True if no logits are asked for."""
        return isinstance(self.keep, slice) and self.keep == NONE


class Forward(Protocol):
    """A model's forward pass: transformers' own, compiled, or native."""

    @property
    def head(self) -> nn.Module:
        """The LM head as computed without gradients."""

    @property
    def windows(self) -> bool:
        """True if each kind of layer gets its own mask, as sliding windows need once they hide something."""

    @property
    def widths(self) -> Callable[[int], int] | None:
        """Function from the number of slots needed to the number to allocate; None: any number is possible."""

    @property
    def finds_best(self) -> bool:
        """True if it has the tap `best`, computed faster than logits."""

    @property
    def greedy(self) -> GreedyRun | None:
        """A pass over a whole tree with the tap `best` and without logits, with less overhead; None if it has none."""

    @property
    def cache(self) -> str | None:
        """The format in which it stores keys and values; None: the one in which it computes them."""

    def run(self, asked: Pass, memory: SlotCache) -> Output:
        """Runs the pass. Keys and values are written into the memory, at the slots that `visibility` names."""


class Newest:
    """The last tokens of texts, whose queries are kept; queries of a whole prompt would take more room than its keys.

    They are [B, W, ..], the newest last, where W is the smaller of `NEWEST_QUERIES` and the longest text's length;
    shorter texts are padded with 0 on the left.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device | None = None) -> None:
        width = min(NEWEST_QUERIES, max(lengths))
        ends = tensor_on(device, lengths)[:, None]
        self._places = ends - width + torch.arange(width, device=device)  # [B, W]
        self._first = min(lengths) - width

    def begin_before(self, end: int) -> bool:
        """True if one of them may be a token before `end`."""
        return end > self._first

    def put(self, newest: Tensor, values: Tensor, begin: int = 0, rows: slice = EVERY) -> None:
        """Copies the last tokens' values, of values [R, T, D] from token `begin` on, into `newest` [B, W, D]."""
        places = self._places[rows] - begin
        inside = (places >= 0) & (places < values.shape[1])
        found = gather_each(values, places.clamp(0, values.shape[1] - 1))
        newest[rows] = torch.where(inside[..., None], found, newest[rows])

    def empty(self, values: Tensor) -> Tensor:
        """Zeros [B, W, D] to write into, like values [R, T, D]."""
        return values.new_zeros(*self._places.shape, values.shape[-1])


def is_query(tap: str) -> bool:
    """Returns whether a tap is a layer's queries."""
    return tap.startswith("query.")


class GroupedForward:
    """A forward pass whose layers get one input in groups of `together` (EasySpec, Wu et al. 2025, section 3).

    The attention blocks of a group read the group's input x, each on its own device if there are several. The MLPs then
    run in order, each on the sum of x, the attention outputs up to its own layer and the MLP outputs before it. With
    `whole` a group of layers L is x + sum over L of (L(x) - x), MLPs included, which is faster and less accurate. The
    first and the last layer are in no group. All results are approximate, keys and values included.

    Args:
        inner: the model's own forward pass.
        together: the number of layers in a group; the last group has the remaining ones.
        whole: whether the MLPs of a group also get one common input.
        count: the number of layers.
        embed: returns the tokens' embeddings, as the first layer reads them, [B, T] -> [B, T, D].
        end: returns the logits [B, E, V] of a pass's kept positions, given the states [B, T, D] after the last layer.
    """

    def __init__(
        self,
        inner: Forward,
        together: int,
        whole: bool,
        count: int,
        embed: Callable[[Tensor], Tensor],
        end: Callable[[Pass, Tensor, SlotCache], Tensor],
    ) -> None:
        self.head, self.windows, self.widths, self.cache = inner.head, inner.windows, inner.widths, inner.cache
        self.finds_best, self.greedy = False, None
        self._inner, self._together, self._whole, self._count = inner, together, whole, count
        self._embed, self._end = embed, end

    def run(self, asked: Pass, memory: SlotCache) -> Output:
        """Runs all layers, or the chosen ones with attention and MLP; such a pass has no taps."""
        assert not asked.taps, "what a group of layers computes has no taps"
        states = self._embed(asked.tokens) if asked.states is None else asked.states
        for group in self._groups(range(self._count) if asked.layers is None else asked.layers.active_layers):
            run = partial(self._layer, asked, memory)
            if len(group) == 1:
                states = run(states, group[0])
            elif self._whole:
                states = states + sum(run(states, layer) - states for layer in group)
            else:
                attended = [run(states, layer, mlp=False) - states for layer in group]  # each [B, T, D]
                for layer, added in zip(group, attended, strict=True):
                    states = run(states + added, layer, attention=False)
        return None if asked.headless else self._end(asked, states, memory), {}

    def _groups(self, layers: Sequence[int]) -> list[Sequence[int]]:
        """The first layer, groups of those between, and the last layer."""
        bounds = [0, *range(1, len(layers) - 1, self._together), max(1, len(layers) - 1), len(layers)]
        return [layers[start:end] for start, end in pairwise(bounds) if start < end]

    def _layer(
        self, asked: Pass, memory: SlotCache, states: Tensor, layer: int, *, attention: bool = True, mlp: bool = True
    ) -> Tensor:
        """The states [B, T, D] after a layer, or after its attention or MLP alone."""
        tap = f"layer.{layer}"
        halves = [tuple(half and index == layer for index in range(self._count)) for half in (attention, mlp)]
        alone = replace(
            asked, states=states, layers=LayerChoice(halves[0], halves[1]), taps=frozenset({tap}), keep=NONE
        )
        return self._inner.run(alone, memory)[1][tap]


class HookedForward(nn.Module):
    """A forward pass as a module, so that hooks can time it."""

    def __init__(self, inner: Forward) -> None:
        super().__init__()
        self.inner = inner

    @property
    def skips_invalid(self) -> bool:
        """True if a pass for argmax tokens alone computes nothing for invalid nodes of a tree."""
        return self.inner.greedy is not None

    def forward(self, asked: Pass, memory: SlotCache) -> Output:
        """Runs the forward pass."""
        return self.inner.run(asked, memory)

    def __call__(self, asked: Pass, memory: SlotCache) -> Output:
        """Runs it between its hooks, without the overhead of a module's call."""
        return self.between(self.forward, asked, memory)

    def between(self, run: Callable[Given, Found], *inputs: Given.args, **named: Given.kwargs) -> Found:
        """Runs a pass of another form between the hooks."""
        output = None
        for before in self._forward_pre_hooks.values():
            before(self, inputs)
        try:
            output = run(*inputs, **named)
            return output
        finally:
            for after in self._forward_hooks.values():
                after(self, inputs, output)


Run = Callable[[Pass, SlotCache], Output]
"""A forward pass as a function, such as a `HookedForward`."""


def without_gradients(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Wraps a function in `torch.no_grad`, which is not entered if gradients are already off, to save time."""

    @wraps(function)
    def run(*args: Given.args, **named: Given.kwargs) -> Found:
        if not torch.is_grad_enabled():
            return function(*args, **named)
        with torch.no_grad():
            return function(*args, **named)

    return run


def without_tracking(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Wraps a function in `torch.inference_mode`, which is not entered again within another."""

    @wraps(function)
    def run(*args: Given.args, **named: Given.kwargs) -> Found:
        if torch.is_inference_mode_enabled():
            return function(*args, **named)
        with torch.inference_mode():
            return function(*args, **named)

    return run


def gather_each(values: Tensor, places: Tensor) -> Tensor:
    """Gathers each row's entries at its own indices: [B, T, D], [B, E] -> [B, E, D]."""
    return values[torch.arange(len(places), device=places.device)[:, None], places]


def limit_of(dtype: torch.dtype) -> float:
    """Returns the largest error of logits for a model of this dtype."""
    return LIMITS.get(dtype.itemsize, LOOSE)


def agree(found: Tensor, wanted: Tensor, limit: float | None = None) -> bool:
    """Returns whether logits [..., V] of one model, computed in two ways, are equal up to rounding.

    Without a `limit`, float64 counts as float32, the highest precision of norms.
    """
    if limit is None:
        limit = LIMITS[4] if wanted.dtype.itemsize >= 4 else LOOSE
    off = ~(differences(found, wanted) <= limit)  # NaN is off, too
    return int(off.sum()) <= (max(1, int(REROUTED * off.numel())) if limit == LOOSE else 0)


def differences(found: Tensor, wanted: Tensor) -> Tensor:
    """The largest difference in each logit vector, as a share of the largest logit of all: [...]."""
    return (found - wanted).abs().amax(-1) / wanted.abs().amax().clamp(min=1e-9)
