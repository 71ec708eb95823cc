"""The places that results go to."""

from __future__ import annotations

import tempfile
from pathlib import Path

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
