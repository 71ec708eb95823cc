"""The folders that results go to, each written by one process at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from specframe.kernel.errors import InputError


def make_folder(folder: Path, remedy: str = "give another --out") -> None:
    """Makes the folder where it is missing, before any work is done for it.

    Raises InputError, which ends with the remedy, when nothing can be written there. Several processes may ask at
    once: each probes with a name of its own.
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
    """The folder, made where it is missing; if the block leaves it empty, what was made is removed again.

    Raises InputError as `make_folder` does.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    make_folder(folder)
    try:
        yield
    finally:
        for each in missing:  # the deepest first; one that holds a file stays, and so do those above it
            with suppress(OSError):
                each.rmdir()


def check_file(path: Path, remedy: str) -> None:
    """Raises InputError, which ends with the remedy, for a place that no file can be written to.

    A file that is there stays as it is; none is left where there was none.
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
    """The folder, made where it is missing, belongs to this thread until the block ends; blocks may nest.

    The lock is the operating system's, which drops it when the process ends, killed or not: a lock file that was left
    after locks nothing. Raises InputError, which ends with the remedy, when another process or thread has the folder,
    or nothing can be written there.
    """
    make_folder(folder, remedy)
    lock = FileLock(folder / NAME, timeout=0, is_singleton=True)  # one object for each path: that is how blocks nest
    _acquire(lock, folder, remedy)
    try:
        yield
    finally:
        lock.release()


def hold(folder: Path, remedy: str) -> FileLock:
    """The lock of a folder, which is made where it is missing: no other has it while this object is there.

    Raises InputError as `writing` does, and where another part of this process has the folder.
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
