"""Format and layout of weights for native passes: 4 or 8 bits in blocks of 32 inputs, or 16 or 32 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

BLOCK = 32
"""Number of inputs that share a scale."""
TILE = 16
"""Number of outputs that native code computes at once."""
Bits = Literal[4, 8, 16, 32]


def block_bytes(bits: Bits) -> int:
    """Returns the bytes of a tile's block: its weights and, if quantized, their scales and minima."""
    return TILE * BLOCK * bits // 8 + TILE * {4: 4, 8: 2}.get(bits, 0)


@dataclass(frozen=True)
class PackedBlocks:
    """A matrix [N, K] in the form of GGUF's Q4_0, Q4_1 and Q8_0: weight = scale * code + low.

    With 8 bits, low is -128 * scale.
    """

    codes: Tensor  # [N, K] uint8; with 4 bits 0 .. 15
    scale: Tensor  # [N, K / 32] float16
    low: Tensor | None  # [N, K / 32] float16; None with 8 bits

    @property
    def shape(self) -> torch.Size:
        """Numbers of outputs and inputs."""
        return self.codes.shape

    @property
    def bits(self) -> Bits:
        """Bits of a code."""
        return 8 if self.low is None else 4

    def values(self) -> Tensor:
        """Returns the weights, [N, K] float32."""
        codes = self.codes.unflatten(1, (-1, BLOCK)).float()  # [N, K / 32, 32]
        scale = self.scale.float()[..., None]
        return (scale * (codes - 128) if self.low is None else scale * codes + self.low.float()[..., None]).flatten(1)

    def take(self, rows: slice | Tensor) -> PackedBlocks:
        """Returns the matrix of these outputs alone."""
        return PackedBlocks(self.codes[rows], self.scale[rows], None if self.low is None else self.low[rows])

    def pack(self) -> Tensor:
        """Returns the bytes as `passes.cpp` reads them: [tiles, K / 32, bytes], outputs padded to whole tiles."""
        outputs, inputs = self.codes.shape
        missing = -outputs % TILE
        codes, scale, low = (
            None if part is None else torch.cat([part, part.new_zeros(missing, part.shape[1])])
            for part in (self.codes, self.scale, self.low)
        )
        assert codes is not None and scale is not None
        shape = (-1, TILE, inputs // BLOCK, 8, 4)  # tile, output, block, four inputs at a time
        quads = codes.view(shape).permute(0, 2, 3, 1, 4)  # [tiles, K / 32, 8, 16, 4]
        if low is not None:
            quads = quads[:, :, :4] | quads[:, :, 4:] << 4
        parts = [quads.flatten(2)]
        for part in (scale,) if low is None else (scale, low):
            lines = part.view(-1, TILE, inputs // BLOCK).transpose(1, 2).contiguous()  # [tiles, K / 32, 16]
            parts.append(lines.view(torch.uint8))
        return torch.cat(parts, -1).contiguous()


@dataclass(frozen=True)
class Floats:
    """A matrix [N, K] of bfloat16 or float32, unrounded."""

    weight: Tensor  # [N, K]

    @property
    def shape(self) -> torch.Size:
        """Numbers of outputs and inputs."""
        return self.weight.shape

    @property
    def bits(self) -> Bits:
        """Bits of a weight."""
        return 16 if self.weight.dtype == torch.bfloat16 else 32

    def values(self) -> Tensor:
        """Returns the weights, [N, K] float32."""
        return self.weight.float()

    def take(self, rows: slice | Tensor) -> Floats:
        """Returns the matrix of these outputs alone."""
        return Floats(self.weight[rows])

    def pack(self) -> Tensor:
        """Returns the bytes as `passes.cpp` reads them: [tiles, K / 32, bytes], outputs padded to whole tiles."""
        outputs, inputs = self.weight.shape
        whole = torch.cat([self.weight, self.weight.new_zeros(-outputs % TILE, inputs)])
        near = _near(self.bits)
        groups = whole.view(-1, TILE, inputs // BLOCK, BLOCK // near, near).permute(0, 2, 3, 1, 4)
        return groups.contiguous().view(torch.uint8).flatten(2)


def _near(bits: Bits) -> int:
    """Returns the number of inputs of one output that are adjacent."""
    return 32 // bits


def unpack(packed: Tensor, outputs: int, bits: Bits) -> PackedBlocks | Floats:
    """Returns the packed weights, without the padding of outputs."""
    tiles, count, _ = packed.shape
    if bits >= 16:
        dtype = torch.bfloat16 if bits == 16 else torch.float32
        groups = packed.view(dtype).view(tiles, count, -1, TILE, _near(bits)).permute(0, 3, 1, 2, 4)
        return Floats(groups.reshape(tiles * TILE, count * BLOCK)[:outputs])
    after = TILE * BLOCK * bits // 8
    quads = packed[..., :after].view(tiles, count, -1, TILE, 4)
    if bits == 4:
        quads = torch.cat([quads & 15, quads >> 4], 2)
    codes = quads.permute(0, 3, 1, 2, 4).reshape(tiles * TILE, count * BLOCK)[:outputs]

    def lines(start: int) -> Tensor:
        part = packed[..., start : start + 2 * TILE].contiguous().view(torch.float16)  # [tiles, K / 32, 16]
        return part.transpose(1, 2).reshape(tiles * TILE, count)[:outputs]

    return PackedBlocks(codes, lines(after), lines(after + 2 * TILE) if bits == 4 else None)


def round_to_blocks(weight: Tensor, bits: Bits, group: int = BLOCK, steps: int = 15) -> PackedBlocks:
    """Rounds a matrix [N, K] as GGUF's Q4_1 (15 steps from lowest to highest) or Q8_0 (127 steps either way).

    Rounding can be coarser in this storage: `group`, a multiple of 32, is the number of inputs that share a scale, and
    with 4 bits `steps`, at most 15, is the number of steps; 7 steps correspond to 3 bits.
    """
    values = weight.detach().float().unflatten(1, (-1, group))  # [N, K / group, group]
    repeats = group // BLOCK
    if bits == 8:
        scale = (values.abs().amax(-1) / 127).half()
        codes = (values / _positive(scale)).round().clamp(-127, 127) + 128
        return PackedBlocks(codes.to(torch.uint8).flatten(1), scale.repeat_interleave(repeats, 1), None)
    low, high = values.aminmax(dim=-1)
    scale, low = ((high - low) / steps).half(), low.half()
    codes = ((values - low.float()[..., None]) / _positive(scale)).round().clamp(0, steps)
    scale, low = (part.repeat_interleave(repeats, 1) for part in (scale, low))
    return PackedBlocks(codes.to(torch.uint8).flatten(1), scale, low)


def _positive(scale: Tensor) -> Tensor:
    """Returns scales to divide by, [N, K / 32, 1] float32: 1 where a block is constant."""
    return scale.float().where(scale > 0, 1.0)[..., None]
