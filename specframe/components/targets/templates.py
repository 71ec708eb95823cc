"""Chat templates: whether a model on this machine has one, and those that read lists of parts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specframe.components.targets.gguf_header import GGUFFile
from specframe.components.targets.gguf_tokenizer import TEMPLATE
from specframe.components.targets.source import sole_gguf
from specframe.neural.weights.locate import find_place


def find_template(model: str) -> bool | None:
    """Returns whether a folder or GGUF file holds a chat template; None for another name, or nothing there."""
    place = find_place(model)
    if not isinstance(place, Path):
        return None
    if (file := sole_gguf(place)) is not None:
        return TEMPLATE in GGUFFile.read(file).metadata
    settings = place / "tokenizer_config.json"
    try:
        stored = '"chat_template"' in settings.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        stored = False
    return stored or (place / "chat_template.jinja").exists() or (place / "chat_template.json").exists()


WORD = "specframe"
LISTED = (
    "{%- set all = namespace(messages=[]) -%}"
    "{%- for message in messages -%}"
    "{%- set parts = [{'type': 'text', 'text': message['content']}] -%}"
    "{%- set all.messages = all.messages + "
    "[dict(message, content=parts) if message['content'] is string else message] -%}"
    "{%- endfor -%}"
    "{%- set messages = all.messages -%}"
)
"""Preamble for a template that reads only lists: it makes lists of texts."""


def take_texts(tokenizer: Any) -> None:
    """Makes a chat template that leaves texts out, since it reads lists of parts alone, take them as well.

    Templates that show texts, and those that nothing helps, stay as they are.
    """
    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, str) or _shows_texts(tokenizer):
        return
    tokenizer.chat_template = LISTED + template
    if not _shows_texts(tokenizer):
        tokenizer.chat_template = template


def _shows_texts(tokenizer: Any) -> bool:
    try:
        return WORD in tokenizer.apply_chat_template([{"role": "user", "content": WORD}], tokenize=False)
    except Exception:  # a template may raise anything
        return False
