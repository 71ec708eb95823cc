"""Inputs and outputs of a native draft: the pairs of a commit, and trees."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.native.abi import Pairs
from specframe.native.linear import QuantizedLinear


@dataclass(frozen=True)
class NewPairs:
    """Newly committed pairs of a session's last rows."""

    first: int  # rows before this one have none
    embeddings: Tensor  # [B - first, M, D], of their tokens; with `tokens`, the table [V, D] of all
    features: Sequence[Tensor]  # [B - first, N, D] each: one, or as many as the network's `entry` takes
    fresh: Sequence[int]  # number of each row's pairs, of M
    places: Sequence[Sequence[int]] | None = None  # of the N, each row's `fresh` ones; None: the first
    tokens: Sequence[Sequence[int]] | None = None  # of each row

    @property
    def most(self) -> int:
        """M, the largest number of a row's pairs."""
        return max(self.fresh)


def check_pairs(pairs: NewPairs, batch: int, width: int, dtype: torch.dtype, entry: QuantizedLinear | None) -> None:
    """Raises ValueError for pairs of other shapes, or in another dtype, than a network of this width reads."""
    rows, nodes = batch - pairs.first, pairs.features[0].shape[1]
    if not 0 <= pairs.first < batch or len(pairs.fresh) != rows or min(pairs.fresh) < 1:
        raise ValueError("the rows with new pairs are the last, and each has one or more")
    table = (pairs.embeddings.shape[0], width) if pairs.tokens is not None else (rows, pairs.most, width)
    for tensor, shape in [(pairs.embeddings, table), *((part, (rows, nodes, width)) for part in pairs.features)]:
        if tensor.shape != shape or tensor.dtype != dtype or not tensor.is_contiguous():
            raise ValueError(f"pairs are contiguous {dtype} {list(shape)}, not {tensor.dtype} {list(tensor.shape)}")
    if len(pairs.features) > 1 and (entry is None or entry.in_features != width * len(pairs.features)):
        raise ValueError(f"the network does not read {len(pairs.features)} features of a token")
    places = [range(new) for new in pairs.fresh] if pairs.places is None else pairs.places
    for name, lists, end in (("nodes", places, nodes), ("tokens", pairs.tokens, pairs.embeddings.shape[0])):
        if lists is None:
            continue
        if [*map(len, lists)] != list(pairs.fresh) or not all(0 <= min(row) <= max(row) < end for row in lists):
            raise ValueError(f"each row has as many {name} as new pairs, from 0 to {end - 1}")


def packed_pairs(pairs: NewPairs) -> Pairs:
    """Returns the pairs as native code reads them."""
    fresh = (c_int64 * len(pairs.fresh))(*pairs.fresh)
    features = (c_void_p * len(pairs.features))(*(part.data_ptr() for part in pairs.features))
    places, tokens = _padded(pairs.places, pairs.most), _padded(pairs.tokens, pairs.most)
    found = Pairs(
        first=pairs.first,
        most=pairs.most,
        fresh=ctypes.addressof(fresh),
        embeddings=pairs.embeddings.data_ptr(),
        tokens=None if tokens is None else ctypes.addressof(tokens),
        taps=len(pairs.features),
        nodes=pairs.features[0].shape[1],
        features=ctypes.addressof(features),
        kept=None if places is None else ctypes.addressof(places),
    )
    found.arrays = fresh, features, places, tokens  # the structure only holds addresses
    return found


def _padded(rows: Sequence[Sequence[int]] | None, most: int) -> ctypes.Array[c_int64] | None:
    """Returns the rows as native code reads them, [B, most]."""
    if rows is None:
        return None
    numbers = [number for row in rows for number in (*row, *[0] * (most - len(row)))]
    return (c_int64 * len(numbers))(*numbers)
