"""Training data: documents out of JSONL files and Hub data sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from glob import glob, has_magic
from os.path import expanduser
from pathlib import Path
from typing import Any

from specframe.files.jsonl import parse_json, read_lines
from specframe.files.prompts import image_file
from specframe.kernel.errors import InputError, first_line, needs_extra
from specframe.recipes.zoo import ZOO, data_file

SHAPE = (
    'it must be {"messages": [{"role": "user", "content": "..."}, ...], "image": "FILE"}, {"text": "..."}, or in the '
    "form of ShareGPT (`conversations`), Alpaca (`instruction`, `input`, `output`) or TRL (`prompt`, `completion`)"
)
ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "bard": "assistant"}
"""ShareGPT's names of roles, and the templates' names."""
Message = Mapping[str, Any]
"""A message in the format of chat templates: `role`, `content`, and any other fields (`reasoning_content`, ...)."""


@dataclass(frozen=True)
class Document:
    """A plain text, or the messages of a chat, perhaps with an image before the first."""

    origin: str
    """Origin, `file:line`, for error messages."""
    text: str | None = None
    messages: tuple[Message, ...] = ()
    image: Path | None = None
    given: int = 0
    """Number of leading characters of a plain text that are the prompt."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The record's other fields, for the chat template: `tools`, `documents`, `enable_thinking`, ..."""

    @property
    def question(self) -> str:
        """The start of the document: a chat's first question, a plain text's prompt, or the whole text."""
        if self.text is not None:
            return self.text[: self.given or None]
        asked = next((message for message in self.messages if message["role"] == "user"), self.messages[0])
        return f"{self.image or ''}\0{asked['content']}"


def read(sources: Iterable[str]) -> Iterator[Document]:
    """The documents of all sources, in order.

    A source is a JSONL file, a glob of them (in sorted order), texts of a plugin, `zoo://name`, or a Hub data set,
    `name` or `name:split` (default split: train). Blank lines are skipped.
    Raises InputError that names the file and line of the first record that cannot be used.
    """
    for source in sources:
        if files := _files(source):
            for path in files:
                yield from _lines(path)
        else:
            yield from _hub(source)


def _files(source: str) -> list[Path]:
    """The files of a source; empty for a Hub name."""
    if source.startswith(ZOO):
        return [data_file(source)]
    path = Path(expanduser(source))
    if path.is_file():
        return [path]
    if has_magic(source):
        if found := sorted(glob(str(path), recursive=True)):
            return [Path(name) for name in found]
        raise InputError(
            f"train.data: no file matches {source}; `specframe distill-data RECIPE --prompts FILE --out DIR` lets the "
            "target write such texts, and train.data=[DIR/answers.jsonl] names them"
        )
    if path.is_dir():
        raise InputError(f"train.data: {source} is a folder; give a glob such as {source.rstrip('/')}/*.jsonl")
    if path.suffix in (".jsonl", ".json", ".txt") or source.startswith(("/", ".", "~")):
        raise InputError(f"train.data: there is no file {source}")
    return []


def _lines(path: Path) -> Iterator[Document]:
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        yield as_document(parse_json(line, where), where, path.parent)


def as_document(record: Any, origin: str, folder: Path | None = None) -> Document:
    """The record as a document; image paths are relative to `folder`.

    Raises InputError with the reason if it is malformed.
    """
    if not isinstance(record, dict):
        raise InputError(f"{origin}: {SHAPE}")
    if "messages" in record or "conversations" in record:
        name = "messages" if "messages" in record else "conversations"
        messages = _messages(record[name], name, origin)
        image = image_file(record["image"], origin, folder) if record.get("image") is not None else None
        more = {key: value for key, value in record.items() if key not in (name, "image")}
        return Document(origin, messages=messages, image=image, fields=more)
    if isinstance(record.get("text"), str):
        return Document(origin, text=record["text"])
    if all(isinstance(record.get(name), str) for name in ("instruction", "output")):
        question = "\n\n".join(part for part in (record["instruction"], record.get("input")) if part)
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": record["output"]}]
        return Document(origin, messages=_messages(turns, "turns", origin))
    prompt, completion = record.get("prompt"), record.get("completion")
    if isinstance(prompt, str) and isinstance(completion, str):
        return Document(origin, text=prompt + completion, given=len(prompt))
    if isinstance(prompt, list) and isinstance(completion, list):
        more = {key: value for key, value in record.items() if key not in ("prompt", "completion")}
        return Document(origin, messages=_messages(prompt + completion, "prompt", origin), fields=more)
    found = ", ".join(sorted(map(str, record))[:6]) or "nothing"
    raise InputError(f"{origin}: {SHAPE}; it has {found}")


def _messages(given: Any, name: str, origin: str) -> tuple[Message, ...]:
    if not isinstance(given, list) or not given:
        raise InputError(f"{origin}: `{name}` must be a list with at least one message")
    return tuple(_message(message, origin) for message in given)


def _message(given: Any, origin: str) -> Message:
    """The message with its content as one text and all other fields unchanged."""
    message = dict(given) if isinstance(given, dict) else {}
    if "value" in message and "from" in message:  # ShareGPT's
        role = message.pop("from")
        message = {"role": ROLES.get(role, role), "content": message.pop("value"), **message}
    content = message.get("content")
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if content is None and message.get("tool_calls"):
        content = ""
    if not isinstance(message.get("role"), str) or not isinstance(content, str):
        raise InputError(f"{origin}: a message needs `role` and `content`, both texts")
    return {**message, "content": content}


def _hub(source: str) -> Iterator[Document]:
    """The records of a Hub data set, read by the package `datasets`."""
    name, _, split = source.partition(":")
    with needs_extra("data", f"train.data: there is no file {source}, and reading it from the Hub"):
        from datasets import load_dataset

    try:
        records = load_dataset(name, split=split or "train")
    except Exception as error:  # whatever the Hub, the network and the loader come up with
        raise InputError(
            f"train.data: there is no file {source}, and the Hub data set cannot be loaded "
            f"({type(error).__name__}: {first_line(error)})"
        ) from error
    for number, record in enumerate(records, 1):
        yield as_document(record, f"{source}, record {number}")
