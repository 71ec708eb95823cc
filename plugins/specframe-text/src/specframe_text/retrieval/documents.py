"""Texts from which a store is built: files, folders of files, and JSON lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from specframe import InputError
from specframe.plugin import parse_json, read_lines

LINES = (".jsonl", ".jsonl.gz")


def read_texts(paths: Iterable[Path]) -> Iterator[str]:
    """Yields the texts of files and of all files in folders, in order of their names.

    A file is one text; in JSON lines, `.jsonl` and `.jsonl.gz`, each record is one, `{"text": ...}`, or several,
    `{"messages": [...]}`. In folders, hidden files and files that are not UTF-8 text are skipped. Raises InputError
    that names a file or line that cannot be used.
    """
    for path in paths:
        if path.is_dir():
            for inner in sorted(path.rglob("*")):
                hidden = any(part.startswith(".") for part in inner.relative_to(path).parts)
                if inner.is_file() and not hidden and _is_text(inner):
                    yield from _read(inner)
        elif path.is_file():
            yield from _read(path)
        else:
            raise InputError(f"there is no file or folder {path}")


def _read(path: Path) -> Iterator[str]:
    if path.name.endswith(LINES):
        for number, line in read_lines(path):
            where = f"{path}:{number}"
            yield from _record(parse_json(line, where), where)
        return
    try:
        yield path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _record(record: Any, where: str) -> Iterator[str]:
    messages = record.get("messages") if isinstance(record, dict) else None
    found = [record] if messages is None else messages
    field = "text" if messages is None else "content"
    for part in found if isinstance(found, list) else [None]:
        if not isinstance(part, dict) or not isinstance(part.get(field), str):
            raise InputError(f'{where}: a record must be {{"text": "..."}} or {{"messages": [{{"content": "..."}}]}}')
        yield part[field]


def _is_text(path: Path) -> bool:
    """Returns whether a file begins with UTF-8 text; the reader of JSON lines reports errors in those."""
    if path.name.endswith(LINES):
        return True
    try:
        with path.open("rb") as file:
            start = file.read(4096)
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        return len(start) == 4096 and error.start > len(start) - 4  # a character was cut off
    except OSError:
        return False
    return b"\0" not in start
