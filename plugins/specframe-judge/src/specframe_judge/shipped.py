"""The head that comes with this package; importing this module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ShippedHead:
    """A head in a folder of this package; called, it gives the folder."""

    name: str
    folder: str
    summary: str

    def __call__(self) -> Path:
        """The head's folder."""
        return Path(__file__).parent / "heads" / self.folder


qwen = ShippedHead("judge", "qwen2.5-coder-0.5b", "a judge's head for Qwen2.5-Coder-0.5B-Instruct, mined on sums")
