"""Tokenised documents with a mask of the answer tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from itertools import pairwise, takewhile
from types import MappingProxyType
from typing import Any

from torch import Tensor

from specframe.kernel.capabilities import ImageReader
from specframe.kernel.errors import InputError
from specframe.training.documents import Document

Encoded = tuple[list[int], list[bool]]
"""Token ids, and a flag for each that is True for tokens of answers."""


NONE: Mapping[str, Any] = MappingProxyType({})


def encode(document: Document, tokenizer: Any, variables: Mapping[str, Any] = NONE) -> list[Encoded]:
    """The samples of a document. Answers are all tokens after a plain text's prompt, or a chat's assistant turns.

    Plain texts get the tokenizer's special tokens and end with its end-of-text token. Chats are rendered with its chat
    template, and an answer includes the tokens that end the turn. A chat is one sample, unless its template renders
    earlier turns differently once later ones follow, as templates do that drop earlier reasoning. Then there are
    several samples, each rendered up to its last turn, and every answer is part of one of them. `variables` are chat
    template variables that the document does not set. Raises InputError for messages that the template refuses or
    renders as an empty text.
    """
    if document.text is not None:
        return [_plain(document.text, document.given, tokenizer)]
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"{document.origin}: the target's tokenizer has no chat template, so it cannot read messages; "
            'give {"text": ...} records instead'
        )
    return [_tokens(text, spans, tokenizer) for text, spans in _rendered(document, tokenizer, variables)]


def _plain(text: str, given: int, tokenizer: Any) -> Encoded:
    """The tokens of a text and its end-of-text token; tokens of its first `given` characters are not answers."""
    ids = list(tokenizer(text)["input_ids"])
    end = tokenizer.eos_token_id
    ids += [end] if end is not None and ids[-1:] != [end] else []
    if not given:
        return ids, [True] * len(ids)
    prompt = list(tokenizer(text[:given])["input_ids"])
    same = _shared(prompt, ids)
    return ids, [place >= same for place in range(len(ids))]


def encode_seen(
    document: Document, reader: ImageReader, variables: Mapping[str, Any] = NONE
) -> tuple[Encoded, dict[str, Tensor]]:
    """The tokens of a chat after an image, and the other inputs of the image.

    Raises InputError if the image cannot be read or the template renders a turn differently when more turns follow.
    """
    turns: list[dict[str, Any]] = [dict(message) for message in document.messages]
    first = next((turn for turn in turns if turn["role"] == "user"), turns[0])
    first["content"] = [{"type": "image", "image": document.image}, {"type": "text", "text": first["content"]}]
    whole, asking = ({**variables, "add_generation_prompt": prompt} for prompt in (False, True))
    try:
        ids, inputs = reader.read_turns(turns, whole)
        answer = [False] * len(ids)
        for index, turn in enumerate(turns):
            if turn["role"] == "assistant":
                before, _ = reader.read_turns(turns[:index], asking)
                ended = index + 1 == len(turns)  # then it has been read, image and all
                after = ids if ended else reader.read_turns(turns[: index + 1], whole)[0]
                if ids[: len(after)] != after:
                    raise InputError(f"the chat template changes message {index + 1} once later ones follow")
                # A template may write a turn without the prompt for it.
                start = _shared(before, after)
                answer[start : len(after)] = [True] * (len(after) - start)
    except InputError as error:
        raise InputError(f"{document.origin}: {error}") from error
    return (ids, answer), inputs


def _shared(first: Sequence[object], second: Sequence[object]) -> int:
    """The length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


Span = tuple[int, int]
"""Start and end in a text, in characters."""


def _rendered(document: Document, tokenizer: Any, variables: Mapping[str, Any]) -> list[tuple[str, list[Span]]]:
    """The chat as one or more texts, each with the spans of its assistant turns to train on."""
    messages = [dict(message) for message in document.messages]
    more = {**variables, **_fields(document, tokenizer)}

    def render(count: int, prompt: bool) -> str:
        if not count:
            return ""
        try:
            made = tokenizer.apply_chat_template(messages[:count], tokenize=False, add_generation_prompt=prompt, **more)
        except Exception as error:  # a template may raise anything, for example for roles in an odd order
            raise InputError(f"{document.origin}: the chat template refuses the messages: {error}") from error
        return str(made)

    samples: list[tuple[str, list[Span]]] = [(render(len(messages), False), [])]
    for number in range(len(messages), 0, -1):  # from the last: an earlier turn joins a text that begins with its own
        if messages[number - 1]["role"] != "assistant":
            continue
        before, after = render(number - 1, True), render(number, False)
        start = _shared(before, after)  # a template may write a turn without the prompt for it
        if not after[start:].strip():
            raise InputError(f"{document.origin}: the chat template writes nothing of message {number}")
        spans = next((spans for text, spans in samples if text.startswith(after)), None)
        if spans is None:
            samples.append((after, [(start, len(after))]))
        else:
            spans.append((start, len(after)))
    learnt = [(text, spans) for text, spans in samples if spans]
    return learnt or samples[:1]


def _fields(document: Document, tokenizer: Any) -> dict[str, Any]:
    """The record's fields as template variables, with `chat_template_kwargs` unpacked, without rendering options."""
    own = signature(tokenizer.apply_chat_template).parameters.keys() - {"tools", "documents"}
    given = {**document.fields, **(document.fields.get("chat_template_kwargs") or {})}
    return {name: value for name, value in given.items() if name not in own | {"chat_template_kwargs"}}


def _tokens(text: str, spans: list[Span], tokenizer: Any) -> Encoded:
    """The text's tokens; those with a character inside a span are answers."""
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        places = encoded["offset_mapping"]
        return list(encoded["input_ids"]), [any(a < max(e, s + 1) and s < b for a, b in spans) for s, e in places]
    ids: list[int] = []
    answer: list[bool] = []
    edges = sorted({0, len(text), *(edge for span in spans for edge in span)})
    for start, end in pairwise(edges):
        piece = tokenizer(text[start:end], add_special_tokens=False)["input_ids"]
        ids += piece
        answer += [any(a <= start < b for a, b in spans)] * len(piece)
    return ids, answer
