"""A drafter's matrices in 4 or 8 bits: drafting is faster and slightly different; the output stays the target's."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from specframe.kernel.errors import InputError
from specframe.native.blocks import BLOCK, Bits, round_to_blocks
from specframe.native.build import load_native
from specframe.native.linear import PackedLinear, QuantizedLinear
from specframe.native.modules import NativeNorm
from specframe.neural.features import TapFusion
from specframe.neural.layer import DecoderLayer

Quantization = Literal["int4", "int8"]
BITS: dict[Quantization, Bits] = {"int4": 4, "int8": 8}
NetworkT = TypeVar("NetworkT", bound=nn.Module)


def rounds(name: str, quantization: Quantization | None, device: torch.device) -> bool:
    """Returns whether to quantize matrices: on a CPU, if there is a `quantization` and a native library.

    Without a library it logs a warning in the part's name. On a GPU the matrices stay unquantized, so that the same
    recipe drafts on both.
    """
    if quantization is None or device.type != "cpu":
        return False
    try:
        load_native()
    except InputError as error:
        logging.getLogger(__name__).warning("%s: %s stays in the target's precision", error, name)
        return False
    return True


class QuantizedCopy(Generic[NetworkT]):
    """Caches a quantized copy of a network, and makes it again when the network's weights have changed."""

    def __init__(self) -> None:
        self._made: tuple[NetworkT, list[int], NetworkT] | None = None

    def of(self, network: NetworkT, make: Callable[[NetworkT], NetworkT]) -> NetworkT:
        """The copy that `make` returns of the network."""
        versions = [part._version for part in (*network.parameters(), *network.buffers())]
        if self._made is None or self._made[0] is not network or self._made[1] != versions:
            self._made = network, versions, make(network)
        return self._made[2]


def round_layers(network: NetworkT, quantization: Quantization) -> NetworkT:
    """A copy of a network with its linear layers quantized in blocks, where blocks divide the number of inputs.

    During decoding, native code computes whole decoder layers if it can.
    """
    rounded = copy.deepcopy(network)
    for name, linear in list(rounded.named_modules()):
        if type(linear) in (nn.Linear, PackedLinear) and linear.in_features % BLOCK == 0:
            parent, _, attribute = name.rpartition(".")
            setattr(rounded.get_submodule(parent), attribute, round_linear(linear.weight, linear.bias, quantization))
    for module in rounded.modules():
        if isinstance(module, DecoderLayer):
            module.pack()
    return rounded


def round_linear(weight: Tensor, bias: Tensor | None, quantization: Quantization) -> QuantizedLinear:
    """A linear layer of these weights [N, K], quantized in blocks; K is a multiple of 32."""
    with torch.autocast(weight.device.type, enabled=False):  # a training validates within it
        return QuantizedLinear(round_to_blocks(weight, BITS[quantization]), bias)


def native_norm(norm: nn.Module) -> NativeNorm:
    """A transformers layer's root mean square norm, computed by native code."""
    weight, epsilon = norm.weight, norm.variance_epsilon
    assert isinstance(weight, Tensor) and isinstance(epsilon, float)
    return NativeNorm(weight, epsilon)


def native_fusion(fusion: nn.Module) -> nn.Module:
    """A fusion of taps, computed by native code if its linear map is quantized; otherwise unchanged."""
    if not isinstance(fusion, TapFusion) or not isinstance(fusion.fc, QuantizedLinear):
        return fusion
    return nn.Sequential(NativeNorm(fusion.weights, fusion.epsilon), fusion.fc)
