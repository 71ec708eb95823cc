"""A device that the host must wait for, as far as a test can see: every look at a tensor's values is noted."""

from __future__ import annotations

import traceback
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

NAMES = (
    *("item", "tolist", "cpu", "numpy", "nonzero", "unique", "masked_select", "is_nonzero", "allclose", "equal"),
    *("__bool__", "__int__", "__float__", "__index__", "__contains__", "__array__"),
)
LOOKS = {getattr(Tensor, name) for name in NAMES} | {
    torch.nonzero,
    torch.unique,
    torch.masked_select,
    torch.equal,
    torch.allclose,
    torch.is_nonzero,
    torch.bincount,
}
"""Operations that copy to the host, or whose result's size the host must learn."""
ON_CPU = Tensor.is_cpu.__get__  # type: ignore[attr-defined]
CHOOSE = {Tensor.__getitem__, Tensor.__setitem__}
MOVE = Tensor.to
SEND = {torch.tensor, torch.as_tensor}
"""Functions that copy the host's numbers to a device, which the host waits for; `tensor_on` does not."""


class FakeDevice(TorchFunctionMode):
    """Inside the with block no tensor is on a CPU, and `looks` has the function and line of every look at one."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The function's result; what waits for the device is noted first."""
        if func == ON_CPU:
            return False
        given = (*args[1:], *(kwargs or {}).values())
        moved = func is MOVE and any(isinstance(value, str) and value == "cpu" for value in given)
        sent = func in SEND and (kwargs or {}).get("device") is not None
        if func in LOOKS or moved or sent or (func in CHOOSE and _waits(args[1])):
            frames = [frame for frame in traceback.extract_stack() if "/specframe" in frame.filename]
            place = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].name}" if frames else "elsewhere"
            self.looks.append(f"{place} {getattr(func, '__name__', func)}")
        return func(*args, **(kwargs or {}))


def _waits(index: Any) -> bool:
    """True where an index holds a mask, or a tensor of one number in place of a number."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, Tensor) and (part.dtype == torch.bool or part.dim() == 0) for part in parts)
