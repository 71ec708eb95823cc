"""A linear layer with weights for the native passes, in 4, 8, 16 or 32 bits."""

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
"""Bytes of a cache line, at which a matrix begins, and of a large page."""


class QuantizedLinear(nn.Module):
    """x W^T + bias: W in blocks and x rounded to 8 bits, row by row and block by block; or both bfloat16, or float32.

    A row's result does not depend on other rows. With gradients the weights are unpacked, x is not rounded, and
    gradients reach x alone.
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
        """Returns a layer without bias, whose weights are still to be written."""
        shape = -(-outputs // TILE), inputs // BLOCK, block_bytes(bits)
        return cls.of(torch.empty(shape, dtype=torch.uint8), outputs, bits)

    @property
    def blocks(self) -> PackedBlocks | Floats:
        """Returns the weights, unpacked to codes."""
        return unpack(self.packed, self.out_features, self.bits)

    def take(self, rows: slice | Tensor) -> QuantizedLinear:
        """Returns a layer of these outputs alone."""
        return QuantizedLinear(self.blocks.take(rows), None if self.bias is None else self.bias[rows])

    @classmethod
    def join(cls, layers: Sequence[QuantizedLinear]) -> QuantizedLinear:
        """Joins layers of whole tiles and equal bits into one of all outputs; they share its storage afterwards."""
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
        """Moves its weights, and those of the layers that it was joined from, to a storage with these bytes."""
        self.packed = storage
        if self._parts:
            parts = storage.split([len(layer.packed) for layer in self._parts])
            for layer, part in zip(self._parts, parts, strict=True):
                layer.packed = part

    @classmethod
    def of(cls, packed: Tensor, outputs: int, bits: Bits, bias: Tensor | None = None) -> QuantizedLinear:
        """Creates a layer of packed weights [tiles, K / 32, bytes] and a bias in float32."""
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer.out_features, layer.in_features, layer.bits = outputs, packed.shape[1] * BLOCK, bits
        layer._floats, layer._parts = None, ()
        layer.register_buffer("packed", packed, persistent=False)
        layer.register_buffer("bias", bias, persistent=False)
        return layer

    @property
    def record(self) -> Weight:
        """The matrix as native code reads it: pointers, valid while this layer exists."""
        bias = None if self.bias is None else self.bias.data_ptr()
        return Weight(self.packed.data_ptr(), bias, self.out_features, self.in_features, self.bits)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., K] to [..., N], in the dtype of x."""
        if torch.is_grad_enabled() and x.requires_grad:
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return nn.functional.linear(x, self.floats(x.dtype), bias)
        return self.product(x).to(x.dtype)

    def floats(self, dtype: torch.dtype) -> Tensor:
        """Returns the weights as numbers, [N, K]; cached, because a training step reads them many times."""
        version = self.packed._version
        if self._floats is None or self._floats[0] != version or self._floats[1].dtype != dtype:
            self._floats = version, self.blocks.values().to(dtype)
        return self._floats[1]

    def product(self, x: Tensor) -> Tensor:
        """Returns the native product without gradients, [..., K] -> [..., N]: in float32, or float64 like x."""
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
    """A linear layer whose weight, of bfloat16 or float32, native code has packed; reading it unpacks it.

    A model that native code runs thus needs its memory only once. For one that PyTorch also runs, use `unpack_again`.
    """

    def __init__(self, packed: QuantizedLinear, bias: nn.Parameter | None) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = packed.in_features, packed.out_features
        self.bias = bias  # type: ignore[assignment] # None where there is none, as in any linear layer
        self._packed = (packed,)  # in a tuple, so that it is not a submodule
        self._whole: Tensor | None = None

    @classmethod
    def pack(cls, linear: nn.Linear) -> PackedLinear:
        """Returns a linear layer whose weight is packed."""
        return cls(QuantizedLinear(Floats(linear.weight.detach()), linear.bias), linear.bias)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weight."""
        return torch.bfloat16 if self.packed.bits == 16 else torch.float32

    @property
    def packed(self) -> QuantizedLinear:
        """The layer as native code reads it."""
        return self._packed[0]

    @property
    def weight(self) -> Tensor:  # type: ignore[override] # a parameter there, which could be written, too
        """The weight, [N, K], with its original bits."""
        if self._whole is not None:
            return self._whole
        blocks = self.packed.blocks
        assert isinstance(blocks, Floats)
        return blocks.weight

    def drop_whole(self) -> None:
        """Drops what `keep_whole` has unpacked."""
        self._whole = None

    def keep_whole(self) -> None:
        """Unpacks the weight once for all later reads."""
        if self._whole is None:
            with torch.inference_mode(False):  # gradients may have to pass it later
                self._whole = self.weight


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    """Returns the parts as one tensor: a view if they are adjacent in memory, as in a file."""
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
    """Unpacks packed weights in addition, so that a model that PyTorch also runs is as fast as before packing."""
    for module in model.modules():
        if isinstance(module, PackedLinear):
            module.keep_whole()


def pack_together(matrices: Sequence[QuantizedLinear]) -> None:
    """Moves the weights of matrices that are read in sequence into one memory area of large pages.

    A pass reads every weight once. With small pages the processor looks up the address of every 4,096 bytes, in a
    virtual machine twice. Nothing is moved if the system has no large pages, or no memory area of that size.
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

    Packing frees many tensors that are too small for separate pages: 110 MB for a model of 135 million weights.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def logits_of(head: nn.Module, features: Tensor) -> Tensor:
    """Applies an LM head to features, without gradients: [..., K] -> [..., N].

    Native products keep all bits: in bfloat16 the logits of likely tokens are an eighth apart.
    """
    logits: Tensor = head.product(features) if isinstance(head, QuantizedLinear) else head(features)
    return logits
