"""runs.jsonl: every finished round, so that an interrupted bench resumes."""

from __future__ import annotations

import hashlib
import json
import os
from itertools import chain, count
from pathlib import Path
from typing import Any, Self

from specframe.files.jsonl import parse_json, read_whole
from specframe.kernel.errors import InputError, SpecframeError

NAME = "runs.jsonl"
REMEDY = "give --fresh to start over"


class Journal:
    """The finished rounds, in a file with one line per round; its first line identifies the bench."""

    def __init__(self, path: Path, rounds: list[dict[str, Any]], head: str = "") -> None:
        self.path = path
        self._head = head
        """The first line, if the file is not written yet."""
        self.rounds = rounds
        """Appended rounds, of this session and of earlier ones."""

    @classmethod
    def open(cls, folder: Path, bench: Any, *, fresh: bool = False) -> Self:
        """The journal of a folder; `bench` is plain data, different for different benches.

        Nothing is written before the first round. Raises InputError when the folder holds another bench's rounds
        (`fresh` drops them) or a broken journal, SpecframeError when it cannot be read.
        """
        path, mark = folder / NAME, _mark(bench)
        try:
            lines = [] if fresh or not path.exists() else read_whole(path)
            if not lines:
                return cls(path, [], json.dumps({"bench": mark}) + "\n")
            head, *rounds = (_parse(path, number, line) for number, line in enumerate(lines, 1))
            if head.get("bench") != mark:
                raise another(folder)
            os.truncate(path, sum(len(line) + 1 for line in lines))
        except OSError as error:
            raise SpecframeError(f"{path} cannot be written: {error.strerror or error}") from error
        return cls(path, rounds)

    def append(self, entry: dict[str, Any]) -> None:
        """Appends a round. Raises SpecframeError if it cannot be written; earlier rounds stay."""
        try:
            with self.path.open("w" if self._head else "a", encoding="utf-8") as file:
                file.write(f"{self._head}{json.dumps(entry)}\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SpecframeError(
                f"{self.path} cannot be written: {error.strerror or error}; the same command resumes after "
                f"{len(self.rounds)} rounds that are kept"
            ) from error
        self._head = ""
        self.rounds.append(entry)


def find_folder(first: Path, bench: Any) -> Path:
    """The first of FOLDER, FOLDER-2, .. that holds no rounds, or those of this bench.

    May also be a folder with a broken journal: opening it reports the error.
    """
    mark = _mark(bench)
    others = (first.with_name(f"{first.name}-{number}") for number in count(2))
    return next(folder for folder in chain([first], others) if _has_place(folder / NAME, mark))


def another(folder: Path) -> InputError:
    """The error for a folder that holds another bench's rounds."""
    return InputError(
        f"{folder} holds the runs of another bench (its contestants, prompts, settings or machine differ); give "
        "another --out, or --fresh to drop them"
    )


def _has_place(path: Path, mark: str) -> bool:
    try:
        lines = read_whole(path)
        return not lines or bool(_parse(path, 1, lines[0]).get("bench") == mark)
    except (OSError, InputError):
        return True


def _mark(bench: Any) -> str:
    return hashlib.sha256(json.dumps(bench, sort_keys=True, default=str).encode()).hexdigest()


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    entry = parse_json(line, f"{path}:{number}", REMEDY)
    if not isinstance(entry, dict):
        raise InputError(f"{path}:{number}: no round of a bench; {REMEDY}")
    return entry
