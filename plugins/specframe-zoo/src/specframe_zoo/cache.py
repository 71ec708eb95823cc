"""The user's cache folder, and entries that are created there once, completely or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING

from specframe import InputError
from specframe.plugin import cache_folder as cache_folder

if TYPE_CHECKING:
    from filelock import FileLock

CACHE = "SPECFRAME_CACHE"
"""Environment variable: the folder for fetched models."""


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Returns the folder; if it is missing, `make` fills another one first, which is renamed when complete.

    One of several processes creates it while the others wait. The next process removes the remains of a killed one.
    Raises InputError if the cache cannot be written.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            if not folder.is_dir():
                _make(folder, make)
    except OSError as error:
        raise InputError(
            f"the cache {folder.parent} cannot be written: {error.strerror or error}; {CACHE} names another folder"
        ) from error
    return folder


def _locked(folder: Path) -> FileLock:
    """Returns a lock that this process alone holds, and that the system releases when the process is killed."""
    from filelock import FileLock, Timeout  # a late import: listing this package's models reads this module

    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print(f"another process is making {folder}; waiting for it", file=sys.stderr)
        lock.acquire()
    return lock


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    for left in folder.parent.glob(f".{folder.name}.*.part"):
        rmtree(left, ignore_errors=True)
    temporary = Path(mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
    try:
        make(temporary)
        for path in temporary.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        temporary.rename(folder)
    except BaseException:
        rmtree(temporary, ignore_errors=True)
        raise
