"""A store's folder: arrays in memory-mapped files, and an index of the current ones."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import time_ns

import numpy as np
from filelock import FileLock, Timeout

from specframe import InputError
from specframe.plugin import make_folder
from specframe_text.retrieval.context_array import ContextArray

FORMAT = 2
INDEX = "store.json"
LOCK = ".lock"
PARTS = ("tokens", "order")
PATIENCE = 30
"""Seconds to wait for another process that writes to the folder."""


@dataclass(frozen=True)
class Index:
    """The contents of a store. Files that it does not name are ignored."""

    vocabulary: int
    tokenizer: str | None
    """Fingerprint of the tokenizer that produced the tokens, if there was one."""
    segments: dict[str, int]
    """Names of its arrays, and the number of tokens of each."""
    format: int = FORMAT


def read(folder: Path, known: Mapping[str, ContextArray] | None = None) -> tuple[Index, dict[str, ContextArray]]:
    """Reads a store's index, and its arrays by name, memory-mapped. Raises InputError with the reason if it is broken.

    Arrays that are `known` from an earlier reading are reused: a name never refers to another array.
    """
    known = known or {}
    try:
        written = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        if written.get("format") != FORMAT:
            raise InputError(
                f"{folder} is a store of format {written.get('format')}, this release reads {FORMAT}; "
                "make it again with specframe store build"
            )
        index = Index(**written)
        arrays = {name: known.get(name) or _open(folder, name, size) for name, size in index.segments.items()}
    except FileNotFoundError as error:
        if (folder / INDEX).exists():
            raise _broken(folder, f"{Path(error.filename).name} is missing") from error
        raise InputError(f"there is no store in {folder}; make one with specframe store build") from error
    except (ValueError, TypeError, AttributeError, EOFError) as error:
        raise _broken(folder, str(error).splitlines()[0] if str(error) else type(error).__name__) from error
    except OSError as error:
        raise InputError(f"the store {folder} cannot be read: {error.strerror or error}") from error
    return index, arrays


def new_names(known: Iterable[str] = ()) -> Iterator[str]:
    """Yields names for new arrays that no array has had: numbers that increase with time."""
    last = max(map(int, known), default=0)
    while True:
        last = max(last + 1, time_ns())
        yield str(last)


def write(folder: Path, index: Index, added: Sequence[tuple[str, ContextArray]]) -> None:
    """Writes new arrays, then the index that names them; removes files that it no longer names.

    The store is unchanged until the index is replaced. Raises InputError if anything cannot be written.
    """
    try:
        for name, array in added:
            for part in PARTS:
                np.save(_path(folder, name, part), getattr(array, part))
        draft = folder / f"{INDEX}.new"
        draft.write_text(json.dumps(asdict(index)), encoding="utf-8")
        os.replace(draft, folder / INDEX)
    except OSError as error:
        for name, _ in added:
            _remove(folder, name)
        reason = error.strerror or str(error)
        raise InputError(f"the store {folder} cannot be written: {reason}; it is as it was before") from error
    for path in folder.glob(f"*.{PARTS[0]}.npy"):
        if (name := path.name.split(".")[0]) not in index.segments:
            _remove(folder, name)


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Locks the folder, created if missing, for writing by this process inside the block.

    Raises InputError if another process holds the lock, or if nothing can be written there.
    """
    make_folder(folder, "give another folder")
    try:
        with FileLock(folder / LOCK, timeout=PATIENCE, is_singleton=True):
            yield
    except Timeout:
        raise InputError(f"another process has been writing to {folder} for {PATIENCE} seconds") from None


def _open(folder: Path, name: str, size: int) -> ContextArray:
    parts = [np.asarray(np.load(_path(folder, name, part), mmap_mode="r")) for part in PARTS]
    for part in parts:
        if part.dtype != np.uint32 or part.shape != (size,):
            raise ValueError(f"an array of segment {name} is not of {size} tokens")
    return ContextArray(*parts)


def _path(folder: Path, name: str, part: str) -> Path:
    return folder / f"{name}.{part}.npy"


def _remove(folder: Path, name: str) -> None:
    for part in PARTS:
        with contextlib.suppress(OSError):  # some systems do not remove a file that another process has mapped
            _path(folder, name, part).unlink(missing_ok=True)


def _broken(folder: Path, reason: str) -> InputError:
    return InputError(f"the store {folder} is broken: {reason}; make it again with specframe store build")
