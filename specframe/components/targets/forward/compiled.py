"""transformers' forward passes over trees, compiled for a few shapes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from specframe.components.targets.forward.layer_subset import double
from specframe.components.targets.forward.masks import ALL
from specframe.components.targets.forward.taps import make_hook
from specframe.components.targets.forward.transformers import TransformersForward
from specframe.native.visibility import Tree
from specframe.neural.cache import SlotCache, cache_name
from specframe.neural.compiled import FixedCache, Steps, power, width_of
from specframe.neural.forward import EVERY, Features, Output, Pass, is_query


class StaticStep(nn.Module):
    """transformers' forward pass over the nodes of trees, as a function of tensors only.

    Shares the model's weights, with own copies of the modules whose features are captured by permanent hooks.
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
            sees: [B, N, N] bool, nodes that a node attends to, itself included.
            length: [B] int64, number of prefix slots of a row that all of its nodes attend to.
            planes: keys and values of every layer. The nodes are written after the longest row.
        """
        count, width = tokens.shape[1], planes[0].shape[2]
        base = length.max()
        slots = torch.arange(width, device=tokens.device)
        node = slots - base  # [S], of the node that stands there
        drawn = (node >= 0) & (node < count)
        place = node.clamp(0, count - 1)
        seen = (slots < length[:, None])[:, None] | (drawn & sees[:, :, place])  # [B, N, S]
        keys = torch.where(drawn, positions[:, place], slots)  # [B, S], positions
        views = {kind: view.for_length(width) for kind, view in self._views.items()} or {"": ALL}
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
    """A step's first inputs for a tree, padded in rows and nodes. A padding node attends only to itself."""
    batch, count = asked.tokens.shape
    tokens, places = asked.tokens.new_zeros(2, rows, nodes)
    tokens[:batch, :count] = asked.tokens
    places[:batch, :count] = asked.positions
    sees = torch.eye(nodes, dtype=torch.bool, device=tokens.device).repeat(rows, 1, 1)
    sees[:batch, :count, :count] = visibility.sees
    length = tokens.new_zeros(rows)
    length[:batch] = visibility.length
    return tokens, places, sees, length


class CompiledForward:
    """The forward pass over trees by torch.compile; over texts, and for layer subsets, transformers' own.

    Rows, nodes and cache positions are padded to powers of two.
    """

    widths: Callable[[int], int] | None = staticmethod(width_of)

    def __init__(self, eager: TransformersForward, dtype: torch.dtype, backend: str = "inductor") -> None:
        self.windows = eager.windows
        self.cache: str | None = None
        self.finds_best, self.greedy = False, None
        self.head = eager.head
        self._eager = eager
        self._steps = Steps[frozenset[str]]("the model", lambda taps: StaticStep(eager, taps, dtype), backend)

    def run(self, asked: Pass, memory: SlotCache) -> Output:
        """Runs whole trees compiled, if possible and if no dispatch mode is active that must see every operator."""
        visibility = asked.visibility
        plain = asked.layers is None and asked.keep is EVERY and asked.places is None
        if isinstance(visibility, Tree) and plain and not any(map(is_query, asked.taps)):
            found = self._run(asked, visibility, memory) if self._steps.ready else None
            if found is not None:
                return found
        return self._eager.run(asked, memory)

    def _run(self, asked: Pass, visibility: Tree, memory: SlotCache) -> tuple[Tensor, Features] | None:
        (batch, count), slots = asked.tokens.shape, memory.rows or 1
        rows, nodes = min(power(batch), slots), power(count)
        if memory.guarded and batch < rows == slots:
            return None  # the last row is not padding
        memory.grow(width_of(visibility.base + nodes))
        with torch.inference_mode():  # always, so that no shape is compiled twice
            planes = memory.planes(rows)
            given = padded(asked, visibility, rows, nodes)
            outputs = self._steps.run(asked.taps, given, planes, lambda: self._logits(asked, memory))
        if outputs is None:
            return None
        logits, *features = (values[:batch, :count] for values in outputs)
        return logits, dict(zip(sorted(asked.taps), features, strict=True))

    def _logits(self, asked: Pass, memory: SlotCache) -> Tensor:
        """The logits by transformers' own forward pass, [B, N, V]."""
        logits, _ = self._eager.run(asked, memory)
        assert logits is not None
        return logits
