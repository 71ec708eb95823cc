"""Answers on disk, in a file that grows line by line, so that an interrupted run can continue."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from specframe import InputError, SpecframeError
from specframe.plugin import make_folder, parse_json, write_json
from specframe_distill.dialogue import Dialogue

ANSWERS = "answers.jsonl"
"""Dialogues in the layout that `train.data` reads."""
DROPPED = "dropped.txt"
"""Lines of the prompts' file without a dialogue, and the reasons."""
ABOUT = "distill.json"
"""File that records how the answers were made."""
REMEDY = "give another --out"


@dataclass
class Tally:
    """Statistics of the answers so far."""

    conversations: int = 0
    unfinished: int = 0
    tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of prompts without a dialogue, by reason."""


class AnswerStore:
    """A folder of answers to one file of prompts, all generated with the same settings."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder, self.settings = folder, settings
        self.tally = Tally()
        self.done: set[int] = set()
        """Lines of the prompts' file that need no further decoding."""

    @property
    def answers(self) -> Path:
        """The file of dialogues."""
        return self.folder / ANSWERS

    @classmethod
    def open(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """Opens a folder; `settings` is plain data that determines the answers.

        Raises InputError if the folder contains answers made with other settings, or damaged ones; SpecframeError if it
        cannot be written.
        """
        make_folder(folder)
        store = cls(folder, json.loads(json.dumps(settings, default=str)))
        for entry in store._read(ANSWERS, parse_answer):
            store._count(entry)
        for line, reason in store._read(DROPPED, parse_dropped):
            store.done.add(line)
            store.tally.dropped[kind(reason)] += 1
        if store.done:
            store._require_same_settings()
        else:
            store.describe({})
        return store

    @property
    def described(self) -> bool:
        """True if the record of how the answers were made is complete; a full disk may have prevented that."""
        return "figures" in self._read_about()

    def add(self, dialogue: Dialogue, about: dict[str, Any]) -> None:
        """Stores a dialogue with further fields about it. Raises SpecframeError if writing fails."""
        if dialogue.answers:
            entry = dialogue.describe() | about
            self._append(ANSWERS, json.dumps(entry))
            self._count(entry)
        else:
            self._append(DROPPED, f"{dialogue.line} {dialogue.stopped}")
            self.done.add(dialogue.line)
            self.tally.dropped[kind(str(dialogue.stopped))] += 1

    def describe(self, run: dict[str, Any]) -> None:
        """Writes the record of how the answers were made to the folder."""
        write_json(self.folder / ABOUT, {"settings": self.settings, **run})

    def _require_same_settings(self) -> None:
        before = self._read_about()["settings"]
        for name in [*self.settings, *before]:
            if before.get(name) != self.settings.get(name):
                raise InputError(f"{self.folder} holds answers made with other {name}; {REMEDY}")

    def _read_about(self) -> dict[str, Any]:
        path = self.folder / ABOUT
        try:
            about = parse_json(path.read_bytes(), str(path))
        except OSError as error:
            raise InputError(f"{path} does not record how the answers next to it were made; {REMEDY}") from error
        if not isinstance(about, dict) or not isinstance(about.get("settings"), dict):
            raise InputError(f"{path} does not record how the answers next to it were made; {REMEDY}")
        return about

    def _read(self, name: str, read: Any) -> list[Any]:
        """Returns the parsed lines of a file; a truncated last line is removed."""
        path = self.folder / name
        if not path.exists():
            return []
        found = []
        try:
            lines = path.read_bytes().split(b"\n")[:-1]
            for number, line in enumerate(lines, 1):
                try:
                    found.append(read(line))
                except (InputError, ValueError, LookupError, TypeError) as error:
                    raise InputError(f"{path}:{number}: nothing that was written here; {REMEDY}") from error
            os.truncate(path, sum(len(line) + 1 for line in lines))
        except OSError as error:
            raise SpecframeError(f"{path} cannot be read: {error.strerror or error}") from error
        return found

    def _append(self, name: str, line: str) -> None:
        path = self.folder / name
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise SpecframeError(
                f"{path} cannot be written: {error.strerror or error}; what is there is kept, and the same command "
                "goes on"
            ) from error

    def _count(self, entry: dict[str, Any]) -> None:
        self.done.add(entry["line"])
        self.tally.conversations += 1
        self.tally.unfinished += not entry["finished"]
        self.tally.tokens += entry["tokens"] or 0


def kind(reason: str) -> str:
    """Returns the category of a reason, without its details: `refused` of `refused: too rude`."""
    return reason.partition(":")[0]


def parse_answer(line: bytes) -> dict[str, Any]:
    """Parses a line of the answers. Raises ValueError, LookupError or TypeError for an invalid one."""
    entry: dict[str, Any] = parse_json(line, ANSWERS)
    int(entry["line"]), bool(entry["finished"]), int(entry["tokens"] or 0)
    return entry


def parse_dropped(line: bytes) -> tuple[int, str]:
    """Parses a dropped line's number and reason. Raises ValueError for an invalid one."""
    number, reason = line.decode().split(" ", 1)
    return int(number), reason
