"""A compiled library in the user's cache: who may write to it, and whether it is whole.

Loading a library runs what it holds, so only this user, or the administrator, may have written it.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256
from pathlib import Path

from specframe.kernel.errors import InputError


def make_folder(folder: Path) -> None:
    """Makes the folder and those above it, as far as they are missing, for this user alone to write to.

    Raises OSError where that cannot be done.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o755, exist_ok=True)
        folder.chmod(folder.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def refuse_strangers(library: Path) -> None:
    """Raises InputError where another user can write to the library, to its folder, or to a folder above that one.

    Above, a folder may belong to a group that can write, or be one like /tmp, where only the owner moves a file.
    """
    if os.name != "posix":
        return
    whole = library.resolve()
    for path in (whole, *whole.parents):
        if not path.exists():
            continue
        found = path.stat()
        near = path in (whole, whole.parent)
        open_to = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH if near else stat.S_IWOTH)
        if found.st_uid not in (0, os.getuid()):
            raise InputError(f"the kernels are not loaded from {library.parent}: {path} is another user's")
        if open_to and (near or not found.st_mode & stat.S_ISVTX):
            raise InputError(f"the kernels are not loaded from {library.parent}: others can write to {path}")


def seal(library: Path) -> None:
    """Adds the digest of a library behind its end, where the system's loader does not look."""
    content = library.read_bytes()
    library.write_bytes(content + sha256(content).digest())
    library.chmod(0o755)


def is_whole(library: Path) -> bool:
    """Returns whether the file is there and ends with the digest of what precedes."""
    if not library.is_file():
        return False
    content = library.read_bytes()
    size = sha256().digest_size
    return sha256(content[:-size]).digest() == content[-size:]
