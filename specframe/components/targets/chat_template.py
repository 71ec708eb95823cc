"""Chat templates of models that read images: messages are lists of parts there, and a text is one."""

from __future__ import annotations

from typing import Any

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
"""What goes before a template that reads lists alone: it makes lists of texts."""


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
    except Exception:  # a template raises what it likes
        return False
