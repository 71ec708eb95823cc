"""Chunks of texts that queries attend to most, found natively by the chunks' mean keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specframe.native.abi import TopChunks
from specframe.native.blocks import BLOCK, TILE
from specframe.native.bounds import check_integers, check_numbers, check_room
from specframe.native.build import are_loaded, load_native


class ChunkKeys:
    """A key for each chunk of the rows' texts, for all layers and key heads, in bfloat16 as native code reads it.

    Args:
        shape: layers, maximum number of rows, key heads, maximum number of chunks, and key size.
    """

    def __init__(self, shape: tuple[int, int, int, int, int]) -> None:
        layers, slots, heads, chunks, size = shape
        if size % BLOCK:
            raise ValueError(f"native code takes keys of a multiple of {BLOCK} numbers, not {size}")
        tiles = -(-chunks // TILE)
        self._tiles = torch.zeros(layers, slots, heads, tiles, size // 2, TILE, 2, dtype=torch.bfloat16)

    @staticmethod
    def fits(keys: Tensor) -> bool:
        """Returns whether native code is in use and accepts keys [.., D]."""
        return keys.is_cpu and keys.shape[-1] % BLOCK == 0 and keys.dtype != torch.float64 and are_loaded()

    @property
    def chunks(self) -> int:
        """Number of chunks for which a row has room."""
        return self._tiles.shape[3] * TILE

    def grow(self, chunks: int) -> None:
        """Reserves room for a number of chunks of each row."""
        layers, slots, heads, tiles, *tile = self._tiles.shape
        more = self._tiles.new_zeros(layers, slots, heads, -(-chunks // TILE), *tile)
        more[:, :, :, :tiles] = self._tiles
        self._tiles = more

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._tiles[:, : len(rows)] = self._tiles[:, rows]

    def put(self, rows: slice, begin: int, keys: Tensor) -> None:
        """Stores keys [layers, R, heads, n, D] of the chunks from `begin` on."""
        places = torch.arange(begin, begin + keys.shape[3])
        pairs = keys.to(torch.bfloat16).unflatten(-1, (-1, 2))
        self._tiles[:, rows].transpose(4, 5)[:, :, :, places // TILE, places % TILE] = pairs

    def best(self, first: int, queries: Tensor, asked: Sequence[int], ends: Sequence[int], count: int) -> Tensor:
        """Returns the chunks with the most attention, best first, then zeros: [layers, R, heads, count] int64.

        Attention is summed over the last `asked` of each row's queries [layers, R, query heads, T, D], scaled, and over
        the heads that share a key head. The first `ends` chunks of each row, from row `first` on, are ranked; the very
        first one is always chosen.
        """
        layers, slots, heads, tiles, half, _, _ = self._tiles.shape
        wide = queries.float().contiguous()
        rows, sharing, steps = wide.shape[1], wide.shape[2] // heads, wide.shape[3]
        check_numbers((wide,))
        if wide.shape != (layers, rows, heads * sharing, steps, 2 * half):
            raise ValueError(f"queries [{layers}, R, heads, T, {2 * half}] choose chunks, not {list(wide.shape)}")
        check_room("rows", first, first + rows, slots)
        steps_asked, competing = torch.tensor([asked, ends], dtype=torch.int64)
        check_integers("queries asked", steps_asked, (rows,), steps + 1)
        check_integers("chunks", competing, (rows,), self.chunks + 1)
        best = torch.empty(layers, rows, heads, count, dtype=torch.int64)
        load_native().specframe_top_chunks(
            TopChunks(
                *(layers, rows, heads, sharing, steps, 2 * half),
                *(slots, first, tiles, count),
                *(part.data_ptr() for part in (wide, self._tiles, steps_asked, competing, best)),
            )
        )
        return best
