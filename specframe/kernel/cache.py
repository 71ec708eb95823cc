"""The folder for files that are computed once on a machine and can be computed again."""

from __future__ import annotations

import os
from pathlib import Path

CACHE = "SPECFRAME_CACHE"
"""Environment variable: another folder for it."""


def cache_folder() -> Path:
    """The folder of fetched models, compiled kernels and self-tests: SPECFRAME_CACHE, or the user's cache folder."""
    if moved := os.environ.get(CACHE):
        return Path(moved).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "specframe"
