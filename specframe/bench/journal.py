"""runs.jsonl: every finished round, so that an interrupted bench resumes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Self

from specframe.files.jsonl import parse_json, read_whole
from specframe.kernel.errors import InputError, SpecframeError

NAME = "runs.jsonl"
REMEDY = "give --fresh to start over"


class Journal:
    """The rounds that are done, in a file that grows a line at a time; its first line identifies the bench."""

    def __init__(self, path: Path, rounds: list[dict[str, Any]]) -> None:
        self.path = path
        self.rounds = rounds
        """Appended rounds, of this session and of earlier ones."""

    @classmethod
    def open(cls, folder: Path, bench: Any, *, fresh: bool = False) -> Self:
        """The journal of a folder; `bench` is plain data, different for different benches.

        Raises InputError when the folder holds another bench's rounds (`fresh` drops them) or a broken
        journal, SpecframeError when it cannot be written.
        """
        path = folder / NAME
        mark = hashlib.sha256(json.dumps(bench, sort_keys=True, default=str).encode()).hexdigest()
        rounds: list[dict[str, Any]] = []
        try:
            lines = [] if fresh or not path.exists() else read_whole(path)
            if not lines:
                path.write_text(json.dumps({"bench": mark}) + "\n", encoding="utf-8")
            else:
                head, *rounds = (_parse(path, number, line) for number, line in enumerate(lines, 1))
                if head.get("bench") != mark:
                    raise InputError(
                        f"{folder} holds the runs of another bench (its contestants, prompts, settings or machine "
                        "differ); give another --out, or --fresh to drop them"
                    )
                os.truncate(path, sum(len(line) + 1 for line in lines))
        except OSError as error:
            raise SpecframeError(f"{path} cannot be written: {error.strerror or error}") from error
        return cls(path, rounds)

    def append(self, entry: dict[str, Any]) -> None:
        """Adds a round. Raises SpecframeError when the disk refuses; earlier rounds stay."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SpecframeError(
                f"{self.path} cannot be written: {error.strerror or error}; the same command resumes after "
                f"{len(self.rounds)} rounds that are kept"
            ) from error
        self.rounds.append(entry)


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    entry = parse_json(line, f"{path}:{number}", REMEDY)
    if not isinstance(entry, dict):
        raise InputError(f"{path}:{number}: no round of a bench; {REMEDY}")
    return entry
