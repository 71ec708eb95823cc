"""A whole draft as one native call: processes new pairs, searches the levels by beam, and returns the tree."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_int64
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from specframe.kernel.costs import Costs
from specframe.kernel.types import BeamSearch, TokenTree
from specframe.native.abi import Network, Search, SessionRows, Trees, Weight
from specframe.native.build import load_native
from specframe.native.decoder import KeysAndValues, PackedLayers
from specframe.native.linear import QuantizedLinear
from specframe.native.modules import Cells
from specframe.native.values import NewPairs, check_pairs, packed_pairs

NO_WEIGHT = Weight(None, None, 0, 0, 0)


@dataclass(frozen=True)
class DraftParts:
    """A drafter's network as data: computes the next features, and logits, from `block` pairs of embedding and feature.

    Values between the parts have the embeddings' dtype, bfloat16 or float32.
    """

    layers: PackedLayers
    head: QuantizedLinear
    embeddings: Tensor  # [v, D], of the tokens it drafts
    support: Tensor | None = None  # [v] int64, these tokens; None: the whole vocabulary
    entry: QuantizedLinear | None = None  # of a pair's A concatenated features, [A D] -> [D]; None: it has one
    fusion: QuantizedLinear | None = None  # of a pair, [2D] -> [D]; None: see `cells`
    cells: Cells | None = None  # an LSTM over pairs; None: the first layer reads both parts concatenated
    block: int = 1
    norm: Tensor | None = None  # [D], the weight of a norm before the head
    feeds_normed: bool = False  # True if the feature fed back has passed that norm


class NativeDraft:
    """A drafter's beam searches, each in one call. A draft has the bits of a level-by-level search."""

    def __init__(self, parts: DraftParts) -> None:
        self.parts = parts
        layers, norm = parts.layers, parts.norm
        self._norm = None if norm is None else norm.detach().float().contiguous()
        self._embeddings = parts.embeddings.contiguous()
        self._support = None if parts.support is None else parts.support.contiguous()
        self._network = Network(
            shape=layers.shape,
            layers=ctypes.addressof(layers.records),
            block=parts.block,
            cells=None if parts.cells is None else ctypes.addressof(parts.cells.records),
            recurrent=0 if parts.cells is None else len(parts.cells.records),
            entry=NO_WEIGHT if parts.entry is None else parts.entry.record,
            fusion=NO_WEIGHT if parts.fusion is None else parts.fusion.record,
            norm=None if self._norm is None else self._norm.data_ptr(),
            feeds_normed=parts.feeds_normed,
            head=parts.head.record,
            embeddings=self._embeddings.data_ptr(),
            support=None if self._support is None else self._support.data_ptr(),
            halves=self._embeddings.dtype == torch.bfloat16,
        )
        self._wanted: tuple[BeamSearch, Search] | None = None  # the last search, which is usually also the next

    def grow(
        self,
        search: BeamSearch,
        roots: Tensor,
        counts: Sequence[int],
        outputs: Tensor,
        cache: KeysAndValues,
        pairs: NewPairs | None = None,
        states: Tensor | None = None,
        tail: Tensor | None = None,
        window: tuple[int, int] | None = None,
    ) -> tuple[TokenTree, int]:
        """Returns the trees below roots [B] and the number of the drafter's passes, over levels of all rows.

        `counts` are the pairs of each row including new ones, from slot K - 1 on, and `outputs` [B, K, D], float32, the
        features after each row's last K pairs. `states` [B, L, 2, D], float32, are those of an LSTM, and `tail` [B, K -
        1, D] its outputs for the last pairs. All three are updated for rows with new pairs. The cache has room for the
        new pairs and the levels. A window (sinks, recent) shows only the first and the newest pairs of a row.
        """
        batch, new_pairs = len(counts), 0 if pairs is None else pairs.most
        blocks, angles = self.parts.layers.memory(cache, slots_for(search, counts, new_pairs, self.parts.block))
        self._check(roots, counts, outputs, blocks, pairs, states, tail)
        self._network.shape = self.parts.layers.shape  # its rotary table may have been created since
        rows = SessionRows(
            rows=batch,
            cache_rows=blocks.shape[1],
            slots=blocks.shape[3],
            cache=blocks.data_ptr(),
            cosine=angles.data_ptr(),
            sine=angles.data_ptr() + angles.element_size() * angles.stride(0),
            counts=ctypes.addressof(numbers := (c_int64 * batch)(*counts)),
            outputs=outputs.data_ptr(),
            states=None if states is None else states.data_ptr(),
            tail=None if tail is None else tail.data_ptr(),
            shift=self.parts.block - 1,
            roots=roots.data_ptr(),
            sinks=0 if window is None else window[0],
            recent=max(counts) if window is None else window[1],
        )
        new = None if pairs is None else packed_pairs(pairs)
        if self._wanted is None or self._wanted[0] is not search:
            self._wanted = search, _search(search)
        written = torch.empty(5 * batch * search.nodes, dtype=torch.int64)
        trees = Trees(packed=written.data_ptr())
        load_native().specframe_draft(
            ctypes.byref(self._network),
            ctypes.byref(rows),
            None if new is None else ctypes.byref(new),
            ctypes.byref(self._wanted[1]),
            ctypes.byref(trees),
        )
        del numbers
        packed = written[: 5 * batch * trees.nodes].view(5, batch, trees.nodes)
        return TokenTree.unpack(packed, trees.levels), trees.passes

    def _check(
        self,
        roots: Tensor,
        counts: Sequence[int],
        outputs: Tensor,
        blocks: Tensor,
        pairs: NewPairs | None,
        states: Tensor | None,
        tail: Tensor | None,
    ) -> None:
        """Raises ValueError for tensors that native code would misread, or whose bounds it would exceed."""
        batch, width, block, cells = len(counts), self.parts.layers.shape.width, self.parts.block, self.parts.cells
        if roots.dtype != torch.int64 or roots.shape != (batch,) or not roots.is_contiguous():
            raise ValueError(f"roots are contiguous int64 [{batch}], not {roots.dtype} {list(roots.shape)}")
        wanted: list[tuple[Tensor, tuple[int, ...]]] = [(outputs, (batch, block, width))]
        if cells is not None:
            wanted.append((outputs if states is None else states, (batch, len(cells.records), 2, width)))
            wanted.append((outputs if tail is None else tail, (batch, block - 1, width)))
        for tensor, shape in wanted:
            if tensor.dtype != torch.float32 or tensor.shape != shape or not tensor.is_contiguous():
                raise ValueError(f"outputs and states are contiguous float32 {list(shape)}, not {list(tensor.shape)}")
        if batch > blocks.shape[1] or min(counts) < 1:
            raise ValueError(f"the cache has {blocks.shape[1]} rows, not {batch}; each has a pair or more")
        if pairs is None:
            return
        if block > 1 and cells is None:
            raise ValueError("new pairs are taken in in blocks after an LSTM alone")
        check_pairs(pairs, batch, width, self._embeddings.dtype, self.parts.entry)


def slots_for(search: BeamSearch, counts: Sequence[int], new: int, block: int) -> int:
    """Returns the slots that a draft may write, after rows of `counts` pairs, up to `new` of them new: blocks of K."""
    return max(counts) + new + (search.depth + 1) * search.width * block


@lru_cache(maxsize=64)
def _scores(costs: Costs, nodes: int) -> ctypes.Array[c_double]:
    """Returns the costs of scoring 0, 1, 2 ... nodes of every row, as far as a tree of `nodes` nodes needs."""
    scores = [0.0, *(costs.score(count) for count in range(1, costs.taken + nodes + 2))]
    return (c_double * len(scores))(*scores)


@lru_cache(maxsize=64)
def _spread(costs: Costs, nodes: int) -> ctypes.Array[c_double]:
    """Returns the costs of 0, 1, 2 ... nodes added in any rows, as far as trees of `nodes` nodes need."""
    count = (costs.rows or 1) * nodes + 1
    return (c_double * count)(*map(costs.spread, range(count)))


def _search(search: BeamSearch) -> Search:
    costs, powers, scores, spread = search.costs, None, None, None
    wanted = Search(search.depth, search.width, search.nodes, search.gain)
    if search.powers is not None:
        powers = (c_double * search.depth)(*search.powers)
        wanted.powers = ctypes.addressof(powers)
    if costs is not None:
        scores = _scores(costs, search.nodes)
        wanted.scores = ctypes.addressof(scores)
        wanted.level, wanted.taken, wanted.together = costs.level, costs.taken, costs.record is not None
        if costs.ragged:
            spread = _spread(costs, search.nodes)
            wanted.spread = ctypes.addressof(spread)
    wanted.arrays = powers, scores, spread  # the structure only holds addresses
    return wanted
