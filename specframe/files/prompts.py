"""Prompts from files: the JSONL layouts of published benchmark sets, tables, or a plain text line each."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from specframe.files.checks import reference_of
from specframe.files.jsonl import parse_json, read_lines
from specframe.kernel.errors import InputError

FIELDS = ("turns", "prompt", "question", "text", "instruction")
"""Fields that may hold a record's prompt: Spec-Bench, MT-bench and EAGLE's sets use turns, HumanEval prompt, GSM8K
question, MBPP text."""


TASKS = ("task", "category")
"""The keys of a record for its kind of task; MT-bench and Spec-Bench use category."""


@dataclass(frozen=True)
class PromptRecord:
    """A prompt as given in its file."""

    turns: tuple[str, ...]
    """The user's messages, turn by turn; most sets have one."""
    task: str | None = None
    reference: str | None = None
    """Text with which a check compares an answer: see `reference_of`."""
    image: Path | None = None
    """The file of a picture before the first message."""


def read_prompts(path: Path, limit: int | None = None) -> list[str]:
    """Returns the first turns of a file's first `limit` prompts: `.json`, `.jsonl`, `.csv`, `.tsv` (or `.gz`) or text.

    Raises InputError, with the line number, for a line without a prompt.
    """
    return [record.turns[0] for record in read_records(path, limit)]


def read_records(path: Path, limit: int | None = None) -> list[PromptRecord]:
    """Returns a file's first `limit` prompts with all turns: `.json`, `.jsonl`, `.csv`, `.tsv` (also `.gz`) or text.

    Raises InputError, with the line number, for a line without a prompt.
    """
    if limit is not None and limit < 1:
        raise InputError(f"a limit is a number of prompts of at least 1, not {limit}")
    records = list(islice(_records(path), limit))
    if not records:
        raise InputError(f"{path}: there is no prompt in it")
    return records


def _records(path: Path) -> Iterator[PromptRecord]:
    if {".csv", ".tsv"} & set(path.suffixes[-2:]):
        yield from _rows(path)
        return
    if path.suffixes[-1:] == [".json"] or path.suffixes[-2:] == [".json", ".gz"]:
        whole = parse_json("\n".join(line for _, line in read_lines(path)), str(path))
        if not isinstance(whole, list):
            raise InputError(f"{path}: a .json file of prompts holds a list; for one object a line use .jsonl")
        for place, value in enumerate(whole):
            yield PromptRecord((value,)) if _has_text(value) else as_record(value, f"{path}: [{place}]", path.parent)
        return
    structured = is_structured(path)
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        yield as_record(parse_json(line, where), where, path.parent) if structured else PromptRecord((line,))


def _rows(path: Path) -> Iterator[PromptRecord]:
    """Yields the records of a table with a line of column names; quoted fields may contain line feeds."""
    lines = (f"{line}\n" for _, line in read_lines(path, blank=True))
    table = csv.DictReader(lines, delimiter="\t" if ".tsv" in path.suffixes else ",")
    try:
        columns = table.fieldnames or ()
        if not set(FIELDS) & set(columns):
            raise InputError(f"{path}: none of its columns ({', '.join(columns)}) is called {', '.join(FIELDS)}")
        for row in table:
            yield as_record(row, f"{path}:{table.line_num}", path.parent)
    except csv.Error as error:
        raise InputError(f"{path}:{table.line_num}: no table of comma-separated values: {error}") from error


def is_structured(path: Path) -> bool:
    """Returns whether the file's lines are JSON rather than plain prompts."""
    return ".jsonl" in path.suffixes


def as_record(record: Any, where: str, folder: Path | None = None) -> PromptRecord:
    """Converts a line's JSON to a prompt; an image's file is relative to the folder.

    Raises InputError if there is no prompt in it, and for an image that is not a file.
    """
    for field in FIELDS if isinstance(record, dict) else ():
        value = record.get(field)
        turns = value if isinstance(value, list) else [value]
        if turns and all(map(_has_text, turns)):
            task = next(filter(_has_text, map(record.get, TASKS)), None)
            image = image_file(record["image"], where, folder) if record.get("image") else None
            return PromptRecord(tuple(turns), task, reference_of(record), image)
    raise InputError(f"{where}: no prompt in it; expected an object with one of {', '.join(FIELDS)}")


def image_file(name: Any, where: str, folder: Path | None) -> Path:
    """Returns the file of a record's image. Raises InputError for an invalid name or a missing file."""
    if not isinstance(name, str) or folder is None:
        raise InputError(f"{where}: `image` must name a file, from the folder of a JSONL file on")
    path = folder / Path(name).expanduser()
    if not path.is_file():
        raise InputError(f"{where}: there is no file {path}")
    return path


def _has_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
