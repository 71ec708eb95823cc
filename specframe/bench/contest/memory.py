"""The most memory that was in use during a stretch of work."""

from __future__ import annotations

from pathlib import Path

import torch

PROCESS = Path("/proc/self")


class Peak:
    """A high-water mark that can be lowered again: a CUDA device's, or on Linux the process's."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        """Starts a new stretch."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        try:
            (PROCESS / "clear_refs").write_text("5", encoding="ascii")  # man 5 proc: resets VmHWM
        except OSError:
            self._device = torch.device("meta")  # no such file, or not ours to write: the peak is unknown

    def read(self) -> int | None:
        """Bytes at the stretch's peak; None where the system does not report it."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        if self._device.type == "meta":
            return None
        status = (PROCESS / "status").read_text(encoding="ascii")
        line = next((line for line in status.splitlines() if line.startswith("VmHWM:")), None)
        return None if line is None else int(line.split()[1]) * 1024
