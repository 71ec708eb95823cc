"""Training data: documents out of JSONL files and Hub data sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import glob, has_magic
from os.path import expanduser
from pathlib import Path
from typing import Any

from specframe.files.jsonl import parse_json, read_lines
from specframe.files.prompts import image_file
from specframe.kernel.errors import InputError, needs_extra
from specframe.recipes.zoo import ZOO, data_file

SHAPE = 'it must be {"text": "..."} or {"messages": [{"role": "user", "content": "..."}, ...], "image": "FILE"}'


@dataclass(frozen=True)
class Document:
    """A plain text, or the messages of a chat, perhaps with an image before the first."""

    origin: str
    """Origin, `file:line`, for error messages."""
    text: str | None = None
    messages: tuple[dict[str, str], ...] = ()
    image: Path | None = None


def read(sources: Iterable[str]) -> Iterator[Document]:
    """The documents of all sources, in order.

    A source is a JSONL file, a glob of them (in sorted order), texts of a plugin, `zoo://name`, or a Hub data set,
    `name` or `name:split` (default split: train). Further fields of a record are ignored, blank lines are skipped.
    Raises InputError that names the file and line of the first record that cannot be used.
    """
    for source in sources:
        if files := _files(source):
            for path in files:
                yield from _lines(path)
        else:
            yield from _hub(source)


def _files(source: str) -> list[Path]:
    """The files a source names; none when it is a Hub name."""
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
    """The record as a document, an image's file being named from the folder on.

    Raises InputError with the reason if it is malformed.
    """
    if not isinstance(record, dict):
        raise InputError(f"{origin}: {SHAPE}")
    if "messages" in record:
        messages = record["messages"]
        if not isinstance(messages, list) or not messages:
            raise InputError(f"{origin}: `messages` must be a list with at least one message")
        image = image_file(record["image"], origin, folder) if record.get("image") is not None else None
        return Document(origin, messages=tuple(_message(message, origin) for message in messages), image=image)
    text = record.get("text")
    if not isinstance(text, str):
        found = ", ".join(sorted(map(str, record))[:6]) or "nothing"
        raise InputError(f"{origin}: {SHAPE}; it has {found}")
    return Document(origin, text=text)


def _message(message: Any, origin: str) -> dict[str, str]:
    if not isinstance(message, dict) or not all(isinstance(message.get(k), str) for k in ("role", "content")):
        raise InputError(f"{origin}: a message needs `role` and `content`, both texts")
    return {"role": message["role"], "content": message["content"]}


def _hub(source: str) -> Iterator[Document]:
    """The records of a Hub data set, by way of the package `datasets`."""
    name, _, split = source.partition(":")
    with needs_extra("data", f"train.data: there is no file {source}, and reading it from the Hub"):
        from datasets import load_dataset

    try:
        records = load_dataset(name, split=split or "train")
    except Exception as error:  # whatever the Hub, the network and the loader come up with
        first = str(error).strip().split("\n")[0]
        raise InputError(
            f"train.data: there is no file {source}, and the Hub data set cannot be loaded "
            f"({type(error).__name__}: {first})"
        ) from error
    for number, record in enumerate(records, 1):
        yield as_document(record, f"{source}, record {number}")
