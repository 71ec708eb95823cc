"""Documents as tokens, each token marked: does the target answer here, or is it given?"""

from __future__ import annotations

from itertools import pairwise, takewhile
from typing import Any

from torch import Tensor

from specframe.kernel.capabilities import ImageReader
from specframe.kernel.errors import InputError
from specframe.training.documents import Document

Encoded = tuple[list[int], list[bool]]
"""Token ids, and for each whether it is part of an answer."""


def encode(document: Document, tokenizer: Any) -> Encoded:
    """The document's tokens; in a plain text all but the first are answers, in a chat the assistant's turns.

    Plain texts get the tokenizer's special tokens and end with its end-of-text token; chats are rendered with its chat
    template, and an answer includes the tokens that end the turn.
    """
    if document.text is not None:
        ids = list(tokenizer(document.text)["input_ids"])
        if tokenizer.eos_token_id is not None and ids[-1:] != [tokenizer.eos_token_id]:
            ids.append(tokenizer.eos_token_id)
        return ids, [True] * len(ids)
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            f"{document.origin}: the target's tokenizer has no chat template, so it cannot read messages; "
            'give {"text": ...} records instead'
        )
    return _tokens(*_rendered(document, tokenizer), tokenizer)


def encode_seen(document: Document, reader: ImageReader) -> tuple[Encoded, dict[str, Tensor]]:
    """The tokens of a chat behind an image, and the other inputs of the image.

    Raises InputError where the image cannot be read, and for a template that changes a turn when more turns follow.
    """
    turns: list[dict[str, Any]] = [dict(message) for message in document.messages]
    first = next((turn for turn in turns if turn["role"] == "user"), turns[0])
    first["content"] = [{"type": "image", "image": document.image}, {"type": "text", "text": first["content"]}]
    try:
        ids, inputs = reader.read_turns(turns, {"add_generation_prompt": False})
        answer = [False] * len(ids)
        for index, turn in enumerate(turns):
            if turn["role"] == "assistant":
                before, _ = reader.read_turns(turns[:index], {"add_generation_prompt": True})
                ended = index + 1 == len(turns)  # then it has been read, image and all
                after = ids if ended else reader.read_turns(turns[: index + 1], {"add_generation_prompt": False})[0]
                if ids[: len(after)] != after:
                    raise InputError(f"the chat template changes message {index + 1} once later ones follow")
                # A template may write a turn without the prompt for it.
                start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
                answer[start : len(after)] = [True] * (len(after) - start)
    except InputError as error:
        raise InputError(f"{document.origin}: {error}") from error
    return (ids, answer), inputs


def _rendered(document: Document, tokenizer: Any) -> tuple[str, list[tuple[int, int]]]:
    """The chat as one text, and the spans of the assistant's turns in it."""
    messages = [dict(message) for message in document.messages]

    def render(count: int, prompt: bool) -> str:
        try:
            return str(tokenizer.apply_chat_template(messages[:count], tokenize=False, add_generation_prompt=prompt))
        except Exception as error:  # a template may raise anything, for example for roles in an odd order
            raise InputError(f"{document.origin}: the chat template refuses the messages: {error}") from error

    whole = render(len(messages), False)
    spans: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = render(index, True) if index else ""
        after = whole if index + 1 == len(messages) else render(index + 1, False)
        if whole.startswith(after) and after.startswith(before):
            spans.append((len(before), len(after)))
            continue
        # the template renders earlier turns differently once later ones follow: find the words themselves
        start = whole.find(message["content"].strip(), spans[-1][1] if spans else 0)
        if start < 0:
            raise InputError(f"{document.origin}: the chat template hides the text of message {index + 1}")
        spans.append((start, start + len(message["content"].strip())))
    return whole, spans


def _tokens(text: str, spans: list[tuple[int, int]], tokenizer: Any) -> Encoded:
    """The text's tokens; those that begin inside a span are answers."""
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        starts = [start for start, _ in encoded["offset_mapping"]]
        return list(encoded["input_ids"]), [any(a <= s < b for a, b in spans) for s in starts]
    ids: list[int] = []
    answer: list[bool] = []
    edges = sorted({0, len(text), *(edge for span in spans for edge in span)})
    for start, end in pairwise(edges):
        piece = tokenizer(text[start:end], add_special_tokens=False)["input_ids"]
        ids += piece
        answer += [any(a <= start < b for a, b in spans)] * len(piece)
    return ids, answer
