"""Prompts from files: the JSONL layouts that benchmark sets are published in, or a plain text line each."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from specframe.kernel.errors import InputError

FIELDS = ("turns", "prompt", "question", "text", "instruction")
"""Where a record's prompt stands: Spec-Bench, MT-bench and EAGLE's sets use turns (the first is taken),
HumanEval prompt, GSM8K question, MBPP text."""


def read_prompts(path: Path, limit: int | None = None) -> list[str]:
    """The prompts of a `.jsonl`, `.jsonl.gz` or text file, the first `limit` of them.

    Raises InputError, with the line number, for a line that holds no prompt.
    """
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    structured = ".jsonl" in path.suffixes
    prompts: list[str] = []
    for number, line in enumerate(lines, 1):
        if limit is not None and len(prompts) >= limit:
            break
        if line.strip():
            prompts.append(_prompt(line, f"{path}:{number}") if structured else line)
    if not prompts:
        raise InputError(f"{path}: there is no prompt in it")
    return prompts


def _prompt(line: str, where: str) -> str:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid JSON: {error.msg} at column {error.colno}") from error
    for field in FIELDS if isinstance(record, dict) else ():
        value = record.get(field)
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, str) and value.strip():
            return value
    raise InputError(f"{where}: no prompt in it; expected an object with one of {', '.join(FIELDS)}")
