"""Tokens that end a text."""

from __future__ import annotations

import logging

from specframe_gguf.header import GGUFFile
from specframe_gguf.tokenizer import CONTROL, TEMPLATE, TOKENS, USER_DEFINED

log = logging.getLogger(__name__)

ANSWER = "specframe"
TURNS = [
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": ANSWER},
    {"role": "user", "content": "!"},
]


def end_tokens(file: GGUFFile) -> int | list[int] | None:
    """Returns the tokens that end a sequence, a turn or a message, and the chat template's token after an answer."""
    named = [file.token(kind) for kind in ("eos", "eot", "eom")]
    found = sorted({token for token in [*named, _after_answer(file)] if token is not None})
    return found[0] if len(found) == 1 else found or None


def _after_answer(file: GGUFFile) -> int | None:
    """Returns the token right after the last answer of a conversation, or after one in the middle; None for plain text.

    The last one has priority, because some templates end messages within an answer as they end answers in the middle.
    """
    tokens, kinds = file.metadata.get(TOKENS), file.metadata.get("tokenizer.ggml.token_type")
    if TEMPLATE not in file.metadata or not isinstance(tokens, list) or not isinstance(kinds, list):
        return None
    whole = {
        token: number
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind in (CONTROL, USER_DEFINED) and token.strip()
    }
    for turns in (TURNS[:2], TURNS):
        text = _render(file, turns).partition(ANSWER)[2].lstrip()
        if fitting := [token for token in whole if text.startswith(token)]:
            return whole[max(fitting, key=len)]
    return None


def _render(file: GGUFFile, turns: list[dict[str, str]]) -> str:
    """Returns a conversation in the file's chat template; empty if the template refuses it."""
    from transformers.utils.chat_template_utils import render_jinja_template

    numbers = {name: file.token(name) for name in ("bos", "eos")}
    tokens = file.metadata[TOKENS]
    named = {f"{name}_token": tokens[number] for name, number in numbers.items() if number is not None}
    try:
        return str(render_jinja_template([turns], chat_template=str(file.metadata[TEMPLATE]), **named)[0][0])
    except Exception:  # a template may raise any error
        log.debug("the chat template of %s refuses a conversation of %d turns", file.path, len(turns))
        return ""
