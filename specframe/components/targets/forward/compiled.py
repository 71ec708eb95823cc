"""transformers' forward passes over trees, compiled for a few shapes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode
from transformers.cache_utils import Cache

from specframe.components.targets.forward.layer_subset import double
from specframe.components.targets.forward.masks import ALL
from specframe.components.targets.forward.taps import make_hook
from specframe.components.targets.forward.transformers import TransformersForward
from specframe.components.targets.rounding import agree
from specframe.kernel.errors import first_line
from specframe.native.visibility import Tree
from specframe.neural.cache import SlotCache, cache_name
from specframe.neural.forward import EVERY, Features, Output, Pass, is_query

log = logging.getLogger(__name__)
SHAPES = 64
"""Largest number of shapes of a model's forward pass that are compiled; further ones run as they are."""
NARROWEST = 256


def power(count: int) -> int:
    """The power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


def width_of(positions: int) -> int:
    """Returns the number of positions to allocate, all of them visible to a compiled forward pass."""
    return max(power(positions), NARROWEST)


class FixedCache(Cache):
    """Keys and values of every layer, [B, H, S, D] each, written at slots that a tensor names.

    Layer `index` has its keys in plane 2 * index and its values in the next.
    """

    def __init__(self, planes: Sequence[Tensor], slots: Tensor) -> None:
        super().__init__(layers=[])
        self._planes = planes
        self._slots = slots  # [N] int64, of the nodes, the same in every row

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Writes [B, H, N, D]; returns all slots, [B, H, S, D]: the mask decides which of them a query sees."""
        keys, values = self._planes[2 * layer_idx], self._planes[2 * layer_idx + 1]
        keys.index_copy_(2, self._slots, key_states)
        values.index_copy_(2, self._slots, value_states)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """0: positions are always given."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Keys a query may see, and the first one's position."""
        return self._planes[0].shape[2], 0


class StaticStep(nn.Module):
    """transformers' forward pass over the nodes of trees, as a function of tensors alone.

    It has the model's weights, and modules of its own where features are captured: its hooks are registered once.
    """

    def __init__(self, eager: TransformersForward, taps: frozenset[str], dtype: torch.dtype) -> None:
        super().__init__()
        self._names = tuple(sorted(taps))
        self._views = dict(eager.views)
        self._dtype = dtype  # of masks
        self._captured: dict[str, Tensor] = {}
        self._cache_name = cache_name(eager.model)
        self._model, own = double(eager.model, [eager.taps.module(name) for name in self._names])
        for name, module in zip(self._names, own, strict=True):
            module.register_forward_hook(make_hook(name, self._captured))

    def forward(
        self, tokens: Tensor, positions: Tensor, sees: Tensor, length: Tensor, *planes: Tensor
    ) -> tuple[Tensor, ...]:
        """Logits [B, N, V], and the features [B, N, D] of the wanted taps, in the order of their names.

        Args:
            tokens: [B, N] int64.
            positions: [B, N] int64, of the nodes.
            sees: [B, N, N] bool, which nodes a node sees, itself included.
            length: [B] int64, the number of a row's first slots that all of its nodes see.
            planes: keys and values of every layer. The nodes are written after the longest row's.
        """
        count, width = tokens.shape[1], planes[0].shape[2]
        base = length.max()
        slots = torch.arange(width, device=tokens.device)
        node = slots - base  # [S], of the node that stands there
        drawn = (node >= 0) & (node < count)
        place = node.clamp(0, count - 1)
        seen = (slots < length[:, None])[:, None] | (drawn & sees[:, :, place])  # [B, N, S]
        keys = torch.where(drawn, positions[:, place], slots)  # [B, S], positions
        views = {kind: view.within(width) for kind, view in self._views.items()} or {"": ALL}
        masks = {}
        for view in dict.fromkeys(views.values()):
            hidden = ~seen | view.hides(positions[..., None], keys[:, None])
            mask = torch.zeros(hidden.shape, dtype=self._dtype, device=tokens.device)
            masks[view] = mask.masked_fill(hidden, -torch.inf)[:, None]
        given = masks[views[next(iter(views))]] if len(views) == 1 else {k: masks[view] for k, view in views.items()}
        logits = self._model(
            tokens,
            position_ids=positions,
            attention_mask=given,
            use_cache=True,
            **{self._cache_name: FixedCache(planes, base + torch.arange(count, device=tokens.device))},
        ).logits
        return (logits, *[self._captured.pop(name) for name in self._names])


def padded(asked: Pass, visibility: Tree, rows: int, nodes: int) -> tuple[Tensor, ...]:
    """A step's first inputs for a tree, padded in rows and nodes. A padding node sees itself alone."""
    batch, count = asked.tokens.shape
    tokens, places = asked.tokens.new_zeros(2, rows, nodes)
    tokens[:batch, :count] = asked.tokens
    places[:batch, :count] = asked.positions
    sees = torch.eye(nodes, dtype=torch.bool, device=tokens.device).repeat(rows, 1, 1)
    sees[:batch, :count, :count] = visibility.sees
    length = tokens.new_zeros(rows)
    length[:batch] = visibility.length
    return tokens, places, sees, length


class Steps:
    """The compiled forward passes of a model, which are made when they are first needed."""

    def __init__(self, eager: TransformersForward, dtype: torch.dtype, backend: str = "inductor") -> None:
        self.refused = False
        """True if the model could not be compiled, or computed something else then."""
        self._eager = eager
        self._dtype = dtype
        self._backend = backend
        self._steps: dict[frozenset[str], Callable[..., tuple[Tensor, ...]]] = {}
        self._checked: set[tuple[object, ...]] = set()

    def run(
        self,
        taps: frozenset[str],
        inputs: tuple[Tensor, ...],
        planes: list[Tensor],
        eager: Callable[[], Output],
    ) -> tuple[Tensor, Features] | None:
        """Runs a step, with padding; returns None, with a warning, if it cannot be compiled or differs from `eager`.

        `eager` returns the expected output, without padding, and is called only for the first step of a shape.
        """
        shape = (taps, *planes[0].shape, *inputs[0].shape)
        if shape in self._checked:
            return self._call(taps, inputs, planes)
        if len(self._checked) == SHAPES:
            return None
        wanted = eager()[0]
        assert wanted is not None
        batch, count = wanted.shape[:2]
        width, (rows, nodes) = planes[0].shape[2], inputs[0].shape
        log.warning("compile: a forward pass over %d x %d nodes in %d positions ..", rows, nodes, width)
        most = 8 * SHAPES  # of all models in this process
        try:
            limits = torch._dynamo.config.patch(recompile_limit=most, accumulated_recompile_limit=most)
            with limits, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the compiler's hints, such as TensorFloat32, which would round
                found = self._call(taps, inputs, planes)
        except Exception as error:  # of many kinds: a graph that breaks, no compiler, a disk that is full
            self._refuse(f"cannot be compiled ({type(error).__name__}: {first_line(error)})")
            return None
        if not agree(found[0][:batch, :count], wanted):
            self._refuse("computes something else when it is compiled")
            return None
        self._checked.add(shape)
        return found

    def _call(self, taps: frozenset[str], inputs: tuple[Tensor, ...], planes: list[Tensor]) -> tuple[Tensor, Features]:
        graphs = inputs[0].device.type == "cuda" and self._backend == "inductor"
        if taps not in self._steps:
            step = StaticStep(self._eager, taps, self._dtype)
            mode = "reduce-overhead" if graphs else None
            self._steps[taps] = torch.compile(step, dynamic=False, fullgraph=True, backend=self._backend, mode=mode)
        if graphs:
            torch.compiler.cudagraph_mark_step_begin()
        logits, *features = self._steps[taps](*inputs, *planes)
        if graphs:  # the next replay overwrites a graph's outputs
            logits, features = logits.clone(), [values.clone() for values in features]
        return logits, dict(zip(sorted(taps), features, strict=True))

    def _refuse(self, why: str) -> None:
        log.warning("compile: the model %s, so its forward pass is transformers' own", why)
        self.refused = True


class CompiledForward:
    """The forward pass over trees by torch.compile; over texts, and by some of the layers alone, transformers' own.

    Rows and nodes are padded to powers of two, and the positions that a node may see are storage in powers of two.
    """

    widths: Callable[[int], int] | None = staticmethod(width_of)

    def __init__(self, eager: TransformersForward, steps: Steps) -> None:
        self.windows = eager.windows
        self.cache: str | None = None
        self.finds_best, self.greedy = False, None
        self.head = eager.head
        self._eager = eager
        self._steps = steps

    def run(self, asked: Pass, memory: SlotCache) -> Output:
        """Runs whole trees compiled, where possible and where no dispatch mode needs to see every operator."""
        visibility = asked.visibility
        plain = asked.layers is None and asked.keep is EVERY and asked.places is None
        if isinstance(visibility, Tree) and plain and not any(map(is_query, asked.taps)):
            eager = self._steps.refused or _get_current_dispatch_mode() is not None
            found = None if eager else self._run(asked, visibility, memory)
            if found is not None:
                return found
        return self._eager.run(asked, memory)

    def _run(self, asked: Pass, visibility: Tree, memory: SlotCache) -> tuple[Tensor, Features] | None:
        (batch, count), slots = asked.tokens.shape, memory.rows or 1
        rows, nodes = min(power(batch), slots), power(count)
        if memory.guarded and batch < rows == slots:
            return None  # the last row is no padding
        memory.grow(width_of(visibility.base + nodes))
        with torch.inference_mode():  # always, so that no shape is compiled twice
            planes = memory.planes(rows)
            given = padded(asked, visibility, rows, nodes)
            found = self._steps.run(asked.taps, given, planes, partial(self._eager.run, asked, memory))
        if found is None:
            return None
        logits, features = found
        return logits[:batch, :count], {tap: values[:batch, :count] for tap, values in features.items()}
