"""Dialogues yet to be held, out of a file of prompts, texts or chats."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from specframe.files.jsonl import parse, read_lines
from specframe.files.prompts import as_record, is_structured
from specframe.kernel.errors import InputError
from specframe.training.data.documents import Document, as_document
from specframe.training.distill.dialogue import Dialogue


def read_dialogues(path: Path, *, chat: bool, limit: int | None = None, finished_only: bool = False) -> list[Dialogue]:
    """The file's conversations, the first `limit` of them, nothing answered yet.

    A line with `messages` is a chat: the messages of the user (and the system) stay, all answers are to be
    made anew. Any other line that `specframe run` takes is the user's message, with `chat`, or the opening
    of a text. Raises InputError, with the line number, for a line that is none of these.
    """
    dialogues: list[Dialogue] = []
    for number, line in read_lines(path):
        if limit is not None and len(dialogues) >= limit:
            break
        where = f"{path}:{number}"
        value: Any = parse(line, where) if is_structured(path) else {"prompt": line}
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
    """A digest of the file. Raises InputError when it cannot be read."""
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
