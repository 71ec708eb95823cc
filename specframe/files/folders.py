"""Folders for results, each written by one process at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from specframe.kernel.errors import InputError


def make_folder(folder: Path, remedy: str = "give another --out") -> None:
    """Creates the folder if it is missing, before any work is done for it.

    Raises InputError, which ends with the remedy, if nothing can be written there. Several processes may call it at
    once, because each probes with a unique name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except FileExistsError:
        raise InputError(f"{folder} is not a folder; {remedy}") from None
    except OSError as error:
        raise InputError(f"{folder} cannot be written to: {error.strerror or error}; {remedy}") from error


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """Creates the folder if it is missing, and removes it again if the block leaves it empty.

    Raises InputError as `make_folder` does.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    make_folder(folder)
    try:
        yield
    finally:
        for each in missing:  # the deepest first; one that contains a file is kept, and so are its parents
            with suppress(OSError):
                each.rmdir()


def check_file(path: Path, remedy: str) -> None:
    """Raises InputError, which ends with the remedy, for a place where no file can be written.

    An existing file is unchanged; none is left if there was none.
    """
    is_new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a", encoding="utf-8").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise InputError(f"{path} cannot be written to: {error.strerror or error}; {remedy}") from error


NAME = ".lock"


@contextmanager
def writing(folder: Path, remedy: str = "give another --out") -> Iterator[None]:
    """Locks the folder, created if missing, for this thread until the block ends; blocks may be nested.

    The operating system releases the lock when the process ends, killed or not, so a remaining lock file has no effect.
    Raises InputError, which ends with the remedy, if another process or thread holds the folder, or if nothing can be
    written there.
    """
    make_folder(folder, remedy)
    lock = FileLock(folder / NAME, timeout=0, is_singleton=True)  # one object per path, so that blocks can be nested
    _acquire(lock, folder, remedy)
    try:
        yield
    finally:
        lock.release()


def hold(folder: Path, remedy: str) -> FileLock:
    """Returns the exclusive lock of a folder, created if missing, which is held while this object exists.

    Raises InputError as `writing` does, and if another part of this process holds the folder.
    """
    make_folder(folder, remedy)
    lock = FileLock(folder / NAME, timeout=0, thread_local=False)
    _acquire(lock, folder, remedy)
    return lock


def _acquire(lock: FileLock, folder: Path, remedy: str) -> None:
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"another process is writing to {folder}; wait for it to end, or {remedy}") from None
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{folder} cannot be locked: {reason}; {remedy}") from error
