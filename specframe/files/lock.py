"""A folder that one process at a time writes to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from specframe.files.folders import make_folder
from specframe.kernel.errors import InputError

NAME = ".lock"


@contextmanager
def writing(folder: Path, remedy: str = "give another --out") -> Iterator[None]:
    """The folder, made where it is missing, belongs to this thread until the block ends; blocks may nest.

    The lock is the operating system's, which drops it when the process ends, killed or not: a lock file that was left
    behind locks nothing. Raises InputError, which ends with the remedy, when another process or thread has the folder,
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
