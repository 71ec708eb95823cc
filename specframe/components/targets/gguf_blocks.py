"""The blocks of a GGUF file, as they are in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specframe.native.blocks import BLOCK, Bits, PackedBlocks

HEAD = "output.weight"
EMBEDDING = "token_embd.weight"
"""Tensor that serves as LM head where a file has none of its own."""


class StoredBlocks:
    """Finds the blocks that transformers unpacked into a matrix of a model."""

    def __init__(self, file: Path, config: Any) -> None:
        from gguf import MODEL_ARCH_NAMES, GGUFReader, get_tensor_name_map

        reader = GGUFReader(file)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        field = reader.fields["general.architecture"]
        name = bytes(field.parts[field.data[0]]).decode()
        architecture = next(key for key, known in MODEL_ARCH_NAMES.items() if known == name)
        self._names = get_tensor_name_map(architecture, config.num_hidden_layers)

    def find(self, name: str, weight: Tensor, bits: Bits) -> PackedBlocks | None:
        """The blocks of a matrix [N, K], which a model calls `name`; None where the file has no such blocks of it.

        transformers may order the outputs in another way than the file does (Llama's queries and keys); they are found
        by their values.
        """
        known = self._names.get_name(name)
        tensor = self._tensors.get(f"{known}.weight")
        if tensor is None and f"{known}.weight" == HEAD:
            tensor = self._tensors.get(EMBEDDING)
        blocks = None if tensor is None else _read(np.asarray(tensor.data), tensor.tensor_type.name)
        if blocks is None or blocks.bits != bits or blocks.codes.shape != weight.shape:
            return None
        order = _order(blocks.values().to(weight.dtype), weight.detach())
        return None if order is None else blocks.take(order)


def _read(data: np.ndarray[Any, Any], kind: str) -> PackedBlocks | None:
    """The blocks of a tensor's bytes [N, bytes]; None for a format whose blocks are of another kind."""
    size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}.get(kind)
    if size is None:
        return None
    raw = torch.from_numpy(data.copy()).unflatten(1, (-1, size))  # [N, K / 32, bytes]
    half = raw[..., : 4 if kind == "Q4_1" else 2].contiguous().view(torch.float16)  # [N, K / 32, 1 or 2]
    scale, codes = half[..., 0], raw[..., 2 * half.shape[-1] :]
    if kind == "Q8_0":
        return PackedBlocks((codes ^ 128).flatten(1), scale, None)  # two's complement plus 128
    codes = torch.cat([codes & 15, codes >> 4], -1)  # the first half of a block in the low bits
    assert codes.shape[-1] == BLOCK
    return PackedBlocks(codes.flatten(1), scale, half[..., 1] if kind == "Q4_1" else -8 * scale)


def _order(stored: Tensor, wanted: Tensor) -> slice | Tensor | None:
    """Returns the stored row of each row of a matrix; None where one is missing."""
    if torch.equal(stored, wanted):
        return slice(None)
    stored, wanted = stored + 0.0, wanted + 0.0  # -0 becomes 0, whose bytes are others
    places = {row.tobytes(): place for place, row in enumerate(stored.contiguous().view(torch.uint8).numpy())}
    found = [places.get(row.tobytes(), -1) for row in wanted.contiguous().view(torch.uint8).numpy()]
    return None if min(found) < 0 else torch.tensor(found)
