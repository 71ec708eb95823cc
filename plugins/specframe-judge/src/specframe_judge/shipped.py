"""The head that is included in this package; importing this module imports no torch."""

from __future__ import annotations

from pathlib import Path


def qwen() -> Path:
    """Returns the folder of the head for Qwen2.5-Coder-0.5B-Instruct."""
    return Path(__file__).parent / "heads" / "qwen2.5-coder-0.5b"
