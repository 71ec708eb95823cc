"""Dialogues: read from a file of prompts, texts or chats, and continued turn by turn with the target."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specframe import InputError
from specframe.plugin import Document, as_document, as_record, parse_json, read_lines


@dataclass(frozen=True)
class DialogueAnswer:
    """The target's answer."""

    text: str
    tokens: int | None
    """Number of generated tokens, or None if the endpoint does not report it."""
    finished: bool
    """True if the answer ended by itself, within the budget."""


@dataclass
class Dialogue:
    """A conversation, answered turn by turn; each answer is part of the next question.

    It ends early if it cannot continue; the messages so far are kept.
    """

    line: int
    """Line of its prompt in the prompts' file, which also selects its random stream."""
    turns: tuple[str, ...]
    """The user's messages, turn by turn; or the opening of a text."""
    system: str | None = None
    chat: bool = True
    """True for turns of a chat; False for the opening of a text that the target continues."""
    finished_only: bool = False
    """True if an unfinished answer ends the conversation and is dropped."""
    answers: list[DialogueAnswer] = field(default_factory=list)
    stopped: str | None = None
    """Reason for an early end: `too long`, `empty`, `unfinished`."""

    @property
    def done(self) -> bool:
        """True if no questions are left."""
        return self.stopped is not None or len(self.answers) == len(self.turns)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat so far; if it is not done, its last message is the question to be answered."""
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for index, turn in enumerate(self.turns[: len(self.answers) + (not self.done)]):
            messages.append({"role": "user", "content": turn})
            if index < len(self.answers):
                messages.append({"role": "assistant", "content": self.answers[index].text})
        return messages

    def add(self, answer: DialogueAnswer) -> None:
        """Appends the answer to the question."""
        if not answer.text.strip():
            self.stop("empty")
        elif self.finished_only and not answer.finished:
            self.stop("unfinished")
        else:
            self.answers.append(answer)

    def stop(self, reason: str) -> None:
        """Ends the conversation with the messages so far."""
        self.stopped = reason

    def describe(self) -> dict[str, Any]:
        """Returns the line to store, in the layout that `train.data` reads."""
        content = {"messages": self.messages} if self.chat else {"text": self.turns[0] + self.answers[0].text}
        counts = [answer.tokens for answer in self.answers]
        return {
            "line": self.line,
            **content,
            "tokens": None if None in counts else sum(filter(None, counts)),
            "finished": all(answer.finished for answer in self.answers),
        }


def read_dialogues(path: Path, *, chat: bool, limit: int | None = None, finished_only: bool = False) -> list[Dialogue]:
    """Reads the file's conversations, the first `limit` of them, without any answers.

    A line with `messages` is a chat: the messages of the user (and the system) are kept, and all answers are generated
    again. Any other line that `specframe run` accepts is the user's message, with `chat`, or the opening of a text.
    Raises InputError, with the line number, for a line that is none of these.
    """
    dialogues: list[Dialogue] = []
    for number, line in read_lines(path):
        if limit is not None and len(dialogues) >= limit:
            break
        where = f"{path}:{number}"
        value: Any = parse_json(line, where) if ".jsonl" in path.suffixes else {"prompt": line}
        if isinstance(value, dict) and "messages" in value:
            dialogue = _read_chat(as_document(value, where), number)
        else:
            turns = as_record(value, where).turns
            dialogue = Dialogue(number, turns if chat else turns[:1], chat=chat)
        dialogue.finished_only = finished_only
        dialogues.append(dialogue)
    if not dialogues:
        raise InputError(f"{path}: there is no prompt in it")
    return dialogues


def fingerprint(path: Path) -> str:
    """Returns a digest of the file. Raises InputError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error


def _read_chat(document: Document, number: int) -> Dialogue:
    roles = [message["role"] for message in document.messages]
    if unknown := set(roles) - {"system", "user", "assistant"}:
        raise InputError(
            f"{document.origin}: a message of the role {min(unknown)}; those of system, user and assistant can be "
            "answered anew"
        )
    if "system" in roles[1:]:
        raise InputError(f"{document.origin}: a system message stands first, or nowhere")
    turns = tuple(message["content"] for message in document.messages if message["role"] == "user")
    if not turns or not all(turn.strip() for turn in turns):
        raise InputError(f"{document.origin}: the user's text is empty{'' if not turns else ' in a message'}")
    return Dialogue(number, turns, system=document.messages[0]["content"] if roles[0] == "system" else None)
