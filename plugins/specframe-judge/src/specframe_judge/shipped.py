"""The head that comes with this package; importing this module imports no torch."""

from __future__ import annotations

from pathlib import Path


def qwen() -> Path:
    """The folder of the head for Qwen2.5-Coder-0.5B-Instruct."""
    return Path(__file__).parent / "heads" / "qwen2.5-coder-0.5b"
