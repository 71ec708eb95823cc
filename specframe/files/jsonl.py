"""Lines of JSON from files."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specframe.files.text import require_unicode
from specframe.kernel.errors import InputError


def read_lines(path: Path, *, blank: bool = False) -> Iterator[tuple[int, str]]:
    """Yields the lines of a text file with their numbers, without blank ones unless requested.

    `.gz` files are unpacked.

    Raises InputError if the file cannot be read, with the line's number if it is not UTF-8.
    """
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if blank or text.strip():
                    yield number, text
    except UnicodeDecodeError as error:
        raise InputError(f"{path}:{number}: cannot be read: it is not UTF-8 text") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def read_whole(path: Path) -> list[bytes]:
    """Returns the lines of a file that grows by lines, without a truncated last one. Raises the errors of `open`."""
    return path.read_bytes().split(b"\n")[:-1]


def parse_json(line: str | bytes, where: str, remedy: str = "") -> Any:
    """Parses a line's JSON. Raises InputError that names the place and the error, and ends with the remedy."""
    ending = remedy and f"; {remedy}"
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid JSON: {error.msg} at column {error.colno}{ending}") from error
    except RecursionError as error:
        raise InputError(f"{where}: not valid JSON: it is nested too deeply{ending}") from error
    except ValueError as error:  # not UTF-8, or a number of thousands of digits
        raise InputError(f"{where}: not valid JSON: {str(error).partition(';')[0]}{ending}") from error
    if isinstance(line, str) and "\\u" in line:  # the only source of unpaired surrogates
        require_unicode(json.dumps(value, ensure_ascii=False), where)
    return value
