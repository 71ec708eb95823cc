"""A linear layer with weights for the native passes, of 4, 8, 16 or 32 bits."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specframe.native.abi import Weight
from specframe.native.blocks import BLOCK, TILE, Bits, Floats, PackedBlocks, block_bytes, unpack
from specframe.native.build import load_native

LINE, PAGE = 64, 2 << 20
"""Bytes of a line of the processor's caches, where a matrix begins; and of a large page."""


class QuantizedLinear(nn.Module):
    """x W^T + bias: W in blocks and x rounded to 8 bits, row by row and block by block; or both bfloat16, or float32.

    A row's result does not depend on the rows next to it. With gradients the weights are unpacked, x is not rounded,
    and gradients reach x alone.
    """

    def __init__(self, blocks: PackedBlocks | Floats, bias: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = blocks.shape
        self.bits = blocks.bits
        self.packed: Tensor
        self.bias: Tensor | None
        self.register_buffer("packed", blocks.pack(), persistent=False)
        self.register_buffer("bias", None if bias is None else bias.detach().float(), persistent=False)
        self._floats: tuple[int, Tensor] | None = None
        self._parts: tuple[QuantizedLinear, ...] = ()

    @classmethod
    def empty(cls, outputs: int, inputs: int, bits: Bits) -> QuantizedLinear:
        """A layer without bias, whose weights are still to be written."""
        shape = -(-outputs // TILE), inputs // BLOCK, block_bytes(bits)
        return cls.of(torch.empty(shape, dtype=torch.uint8), outputs, bits)

    @property
    def blocks(self) -> PackedBlocks | Floats:
        """The weights, unpacked to codes."""
        return unpack(self.packed, self.out_features, self.bits)

    def take(self, rows: slice | Tensor) -> QuantizedLinear:
        """A layer of these outputs alone."""
        return QuantizedLinear(self.blocks.take(rows), None if self.bias is None else self.bias[rows])

    @classmethod
    def join(cls, layers: Sequence[QuantizedLinear]) -> QuantizedLinear:
        """One layer of all their outputs, which are whole tiles of as many bits; they share its storage afterwards."""
        biases = [layer.bias for layer in layers if layer.bias is not None]
        joined = cls.of(
            _concatenated([layer.packed for layer in layers]),
            sum(layer.out_features for layer in layers),
            layers[0].bits,
            torch.cat(biases) if biases else None,
        )
        joined._parts = tuple(layers)
        joined.move_to(joined.packed)
        return joined

    def move_to(self, storage: Tensor) -> None:
        """Takes a storage of the same bytes for its weights, and for those of the layers that it was joined of."""
        self.packed = storage
        if self._parts:
            parts = storage.split([len(layer.packed) for layer in self._parts])
            for layer, part in zip(self._parts, parts, strict=True):
                layer.packed = part

    @classmethod
    def of(cls, packed: Tensor, outputs: int, bits: Bits, bias: Tensor | None = None) -> QuantizedLinear:
        """A layer of packed weights [tiles, K / 32, bytes] and a bias in float32."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.out_features, layer.in_features, layer.bits = outputs, packed.shape[1] * BLOCK, bits
        layer._floats, layer._parts = None, ()
        layer.register_buffer("packed", packed, persistent=False)
        layer.register_buffer("bias", bias, persistent=False)
        return layer

    @property
    def record(self) -> Weight:
        """The matrix as native code takes it: pointers, valid while this layer lives."""
        bias = None if self.bias is None else self.bias.data_ptr()
        return Weight(self.packed.data_ptr(), bias, self.out_features, self.in_features, self.bits)

    def forward(self, x: Tensor) -> Tensor:
        """[..., K] -> [..., N], in the dtype of x."""
        if torch.is_grad_enabled() and x.requires_grad:
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return nn.functional.linear(x, self.floats(x.dtype), bias)
        return self.product(x).to(x.dtype)

    def floats(self, dtype: torch.dtype) -> Tensor:
        """The weights as numbers, [N, K]; kept for the next call, since a training step reads them many times."""
        version = self.packed._version
        if self._floats is None or self._floats[0] != version or self._floats[1].dtype != dtype:
            self._floats = version, self.blocks.values().to(dtype)
        return self._floats[1]

    def product(self, x: Tensor) -> Tensor:
        """The native product without gradients, [..., K] -> [..., N]: in float32, or float64 as x is."""
        rows = x.float().contiguous()  # [.., K]
        out = torch.empty(*x.shape[:-1], self.out_features)
        weight = self.record
        count = rows.numel() // self.in_features
        load_native().specframe_multiply(ctypes.byref(weight), rows.data_ptr(), count, out.data_ptr())
        return out.double() if x.dtype == torch.float64 else out

    def extra_repr(self) -> str:
        """Describes shape and bits."""
        return f"{self.in_features}, {self.out_features}, bits={self.bits}"


class PackedLinear(nn.Linear):
    """A linear layer whose weight, of bfloat16 or float32, native code has packed: who reads it gets it unpacked.

    So a model that native code runs takes up its memory once. `unpack_again` is for those who run it otherwise, too.
    """

    def __init__(self, packed: QuantizedLinear, bias: nn.Parameter | None) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = packed.in_features, packed.out_features
        self.bias = bias  # type: ignore[assignment] # None where there is none, as in any linear layer
        self._packed = (packed,)  # no module of the model's
        self._whole: Tensor | None = None

    @classmethod
    def pack(cls, linear: nn.Linear) -> PackedLinear:
        """A linear layer whose weight is packed."""
        return cls(QuantizedLinear(Floats(linear.weight.detach()), linear.bias), linear.bias)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weight."""
        return torch.bfloat16 if self.packed.bits == 16 else torch.float32

    @property
    def packed(self) -> QuantizedLinear:
        """The layer as native code takes it."""
        return self._packed[0]

    @property
    def weight(self) -> Tensor:  # type: ignore[override] # a parameter there, which could be written, too
        """The weight, [N, K], bit for bit as it was."""
        if self._whole is not None:
            return self._whole
        blocks = self.packed.blocks
        assert isinstance(blocks, Floats)
        return blocks.weight

    def drop_whole(self) -> None:
        """Drops what `keep_whole` has unpacked."""
        self._whole = None

    def keep_whole(self) -> None:
        """Unpacks the weight once for all that will read it."""
        if self._whole is None:
            with torch.inference_mode(False):  # gradients may have to pass it later
                self._whole = self.weight


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    """The parts in one tensor: a view of their memory where they follow each other in it, as in a file."""
    first, ends = parts[0], [part.data_ptr() + part.nbytes for part in parts]
    storages = {part.untyped_storage().data_ptr() for part in parts}
    if len(storages) > 1 or [part.data_ptr() for part in parts[1:]] != ends[:-1]:
        return torch.cat(list(parts))
    return first.as_strided((sum(map(len, parts)), *first.shape[1:]), first.stride())


def pack_floats(model: nn.Module) -> None:
    """Packs the weights of a model's linear layers, in place."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and child.weight.dtype in (torch.bfloat16, torch.float32):
                setattr(module, name, PackedLinear.pack(child))


def unpack_again(model: nn.Module) -> None:
    """Unpacks packed weights next to the packed ones: a model that PyTorch runs, too, is as fast as it was."""
    for module in model.modules():
        if isinstance(module, PackedLinear):
            module.keep_whole()


def pack_together(matrices: Sequence[QuantizedLinear]) -> None:
    """Puts the weights of matrices that are read one after the other into one memory of large pages.

    A pass reads every weight once: in small pages the processor looks up the place of every 4,096 bytes, in a virtual
    machine twice. Nothing moves where the system knows no large pages, or has no such piece of memory.
    """
    sizes = [-(-matrix.packed.nbytes // LINE) * LINE for matrix in matrices]
    if not hasattr(mmap, "MADV_HUGEPAGE") or sum(sizes) < PAGE or not all(matrix.packed.is_cpu for matrix in matrices):
        return
    try:
        memory = mmap.mmap(-1, sum(sizes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        return
    for matrix, part in zip(matrices, torch.frombuffer(memory, dtype=torch.uint8).split(sizes), strict=True):
        bytes_of = matrix.packed.view(torch.uint8)
        storage = part[: matrix.packed.nbytes].view(bytes_of.shape).copy_(bytes_of)
        matrix.move_to(storage.view(matrix.packed.dtype))


def release_memory() -> None:
    """Returns the memory of freed tensors to the system, as far as the C library can (glibc's malloc_trim(3)).

    Packing frees many that are too small to have pages of their own: 110 MB for a model of 135 million weights.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def logits_of(head: nn.Module, features: Tensor) -> Tensor:
    """Applies an LM head to features, where no gradients are wanted: [..., K] -> [..., N].

    The native products keep every bit: in bfloat16 the logits of likely tokens are an eighth apart.
    """
    logits: Tensor = head.product(features) if isinstance(head, QuantizedLinear) else head(features)
    return logits
