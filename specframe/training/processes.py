"""Distributed training processes launched by Accelerate, memory settings, and interruption by Ctrl-C."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

import torch
from torch import Tensor, nn

from specframe.kernel.errors import InputError, needs_extra

with needs_extra("train", "training"):
    from accelerate import PartialState
    from accelerate.utils import reduce

TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt(3)."""
KEPT = 2**31 - 1
"""Number of free bytes at the end of the heap that are not returned to the system."""


class Processes:
    """Represents this process among those of `accelerate launch` (or torchrun); every method is a no-op for one.

    Drafters are small, so every process holds a full copy, and gradients are averaged in one all-reduce per step after
    the backward pass. Unlike DistributedDataParallel, this supports rollouts with any number of forward passes.
    """

    def __init__(self, device: torch.device) -> None:
        state = PartialState(cpu=device.type == "cpu")
        self.count: int = state.num_processes
        self.rank: int = state.process_index
        self.main: bool = state.is_main_process
        self._state = state
        if self.count > 1 and device != state.device and device.type != "cpu":
            raise InputError(
                f"process {self.rank} trains on {state.device}, but its target is on {device}; "
                "leave the target's device to `auto`, so that every process loads it where it trains"
            )

    def shared_out(self, count: int) -> range:
        """This process's part of the range 0 .. count - 1, which is split as equally as possible."""
        return range(self.rank * count // self.count, (self.rank + 1) * count // self.count)

    def share(self, module: nn.Module) -> None:
        """Broadcasts the main process's parameters and buffers."""
        if self.count > 1:
            for tensor in module.state_dict().values():
                torch.distributed.broadcast(tensor, src=0)

    def average(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replaces every gradient by its mean over the processes, in one all-reduce."""
        if self.count == 1:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = reduce(torch.cat([gradient.flatten() for gradient in gradients]), "mean")
        for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
            p.grad = part.view_as(p)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the processes."""
        return values if self.count == 1 else reduce(values.clone(), "mean")

    def any(self, flag: bool, device: torch.device) -> bool:
        """Returns whether it is true in any process."""
        return flag if self.count == 1 else bool(self.mean(torch.tensor(float(flag), device=device)) > 0)

    def wait(self) -> None:
        """Waits for all processes (a barrier)."""
        self._state.wait_for_everyone()


def join() -> bool:
    """Joins the processes that `accelerate launch` or torchrun started; True in the main one.

    Called before models load, it gives every process a device of its own.
    """
    return bool(PartialState(cpu=not torch.accelerator.is_available()).is_main_process)


def keep_freed() -> bool:
    """Keeps freed memory in the process from now on, and returns whether that is possible: with glibc only.

    By default glibc maps memory for every large tensor, and the system zeroes each page: with logits over the whole
    vocabulary this takes half the time of a step on a CPU.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return bool(library.mallopt(MMAP_MAX, 0)) and bool(library.mallopt(TRIM_THRESHOLD, KEPT))


class Interruption:
    """A context in which the first SIGINT or SIGTERM only sets `asked`; a second one interrupts at once.

    Outside the main thread, where signals cannot be caught, it does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interruption:
        """Installs the signal handlers."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        """Restores the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
