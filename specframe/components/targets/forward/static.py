"""A forward pass over trees with few shapes and fixed storage, which can be compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from specframe.components.targets.forward.layer_subset import double
from specframe.components.targets.forward.state import ALL, AttentionView, State
from specframe.components.targets.forward.taps import Taps, make_hook
from specframe.kernel.types import TokenTree
from specframe.neural.cache import cache_name

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

    def __init__(self, model: nn.Module, taps: Taps, views: Mapping[str, AttentionView], dtype: torch.dtype) -> None:
        super().__init__()
        self._names = tuple(sorted(taps.wanted))
        self._views = dict(views)
        self._dtype = dtype  # of masks
        self._captured: dict[str, Tensor] = {}
        self._cache_name = cache_name(model)
        self._model, own = double(model, [taps.module(name) for name in self._names])
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
            planes: keys and values of every layer. The nodes are written behind the longest row's.
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


def padded(tree: TokenTree, state: State, positions: Tensor, rows: int, nodes: int) -> tuple[Tensor, ...]:
    """A step's first inputs for a tree, padded in rows and nodes. A padding node sees itself alone."""
    batch, count = tree.tokens.shape
    tokens, places = tree.tokens.new_zeros(2, rows, nodes)
    tokens[:batch, :count] = tree.tokens
    places[:batch, :count] = positions
    sees = torch.eye(nodes, dtype=torch.bool, device=tokens.device).repeat(rows, 1, 1)
    sees[:batch, :count, :count] = tree.ancestors
    length = tokens.new_zeros(rows)
    length[:batch] = state.length
    return tokens, places, sees, length
