"""The answers on disk, in a file that grows a line at a time, so that interrupted work goes on."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from specframe.files.folders import make_folder
from specframe.files.provenance import write_json
from specframe.kernel.errors import InputError, SpecframeError
from specframe.training.distill.dialogue import Dialogue

ANSWERS = "answers.jsonl"
"""The dialogues, as `train.data` reads them."""
DROPPED = "dropped.txt"
"""Lines of the prompts' file that gave no dialogue, and why."""
ABOUT = "distill.json"
"""How the answers were made."""


@dataclass
class Tally:
    """What there is so far."""

    conversations: int = 0
    unfinished: int = 0
    tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """How many prompts gave no dialogue, by the reason."""


class Store:
    """A folder of answers to one file of prompts, all made in the same way."""

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self.folder, self.settings = folder, settings
        self.tally = Tally()
        self.done: set[int] = set()
        """The lines of the prompts' file that need not be played again."""

    @property
    def answers(self) -> Path:
        """The file of the dialogues."""
        return self.folder / ANSWERS

    @classmethod
    def open(cls, folder: Path, settings: dict[str, Any]) -> Self:
        """The store of a folder; `settings` is plain data that decides what the answers are.

        Raises InputError when the folder holds answers made with other settings, or broken ones;
        SpecframeError when it cannot be written.
        """
        make_folder(folder)
        store = cls(folder, json.loads(json.dumps(settings, default=str)))
        for entry in store._read(ANSWERS, parse_answer):
            store._count(entry)
        for line, reason in store._read(DROPPED, parse_dropped):
            store.done.add(line)
            store.tally.dropped[reason] += 1
        if store.done:
            store._require_same_settings()
        else:
            store.describe({})
        return store

    def add(self, dialogue: Dialogue, about: dict[str, Any]) -> None:
        """Keeps a dialogue, with further fields about it. Raises SpecframeError when the disk refuses."""
        if dialogue.answers:
            entry = dialogue.describe() | about
            self._append(ANSWERS, json.dumps(entry))
            self._count(entry)
        else:
            self._append(DROPPED, f"{dialogue.line} {dialogue.stopped}")
            self.done.add(dialogue.line)
            self.tally.dropped[str(dialogue.stopped)] += 1

    def describe(self, run: dict[str, Any]) -> None:
        """Writes how the answers were made beside them."""
        write_json(self.folder / ABOUT, {"settings": self.settings, **run})

    def _require_same_settings(self) -> None:
        path = self.folder / ABOUT
        try:
            before = dict(json.loads(path.read_bytes())["settings"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(f"{path} does not say how the answers beside it were made; give another --out") from error
        for name in [*self.settings, *before]:
            if before.get(name) != self.settings.get(name):
                raise InputError(f"{self.folder} holds answers made with other {name}; give another --out")

    def _read(self, name: str, parse: Any) -> list[Any]:
        """What the file's lines say; a last line that was cut off is taken away."""
        path = self.folder / name
        if not path.exists():
            return []
        found = []
        try:
            *lines, rest = path.read_bytes().split(b"\n")
            for number, line in enumerate(lines, 1):
                try:
                    found.append(parse(line))
                except (ValueError, LookupError, TypeError) as error:
                    raise InputError(f"{path}:{number}: nothing that was written here; give another --out") from error
            if rest:
                os.truncate(path, path.stat().st_size - len(rest))
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


def parse_answer(line: bytes) -> dict[str, Any]:
    """A line of the answers. Raises ValueError, LookupError or TypeError for another."""
    entry: dict[str, Any] = json.loads(line)
    int(entry["line"]), bool(entry["finished"]), int(entry["tokens"] or 0)
    return entry


def parse_dropped(line: bytes) -> tuple[int, str]:
    """A line's number, and why it was dropped. Raises ValueError for another line."""
    number, reason = line.decode().split(" ", 1)
    return int(number), reason
