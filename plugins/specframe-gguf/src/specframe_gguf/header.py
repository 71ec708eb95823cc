"""Header of a GGUF file (versions 2 and 3, little-endian): its metadata and table of tensors."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np

from specframe import InputError
from specframe_gguf.blocks import KINDS, TYPE_NAMES

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
"""Alignment of tensors in bytes, if the file does not state it."""
FLOAT, STRING, ARRAY = 6, 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The fixed-size types of metadata, as struct formats."""
PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
"""Matches the name of a part of a file: the file's name, the part's number and the number of parts."""


@dataclass(frozen=True)
class StoredTensor:
    """Location of a tensor in a file."""

    name: str
    shape: tuple[int, ...]
    """In torch's order: outputs, inputs."""
    kind: str
    """The type of its blocks, such as Q4_K, or of its values."""
    start: int
    """Offset of the first byte from the start of the file."""
    path: Path
    """The file, or the part that contains it."""


@dataclass(frozen=True)
class GGUFFile:
    """A GGUF file whose header was read and is complete; for a file in parts, with the headers of all."""

    path: Path
    """The file, or its first part."""
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def read(cls, path: Path) -> GGUFFile:
        """Reads a header, but no weights; any part of a file may be given.

        Raises InputError for a file that is not GGUF or is truncated, for a missing part, and for an adapter.
        """
        if (named := PART.fullmatch(path.name)) and int(named[2]) > 1:
            path = _part(path, 1, int(named[3]))
        metadata, tensors = _header(path)
        kind = metadata.get("general.type", "model")
        if not isinstance(metadata.get("general.architecture"), str):
            raise InputError(f"{path} cannot be read as GGUF: its metadata names no architecture; is the file whole?")
        if kind != "model":
            raise InputError(f"{path} holds {'an' if str(kind)[:1] in 'aeiou' else 'a'} {kind}, not a model")
        count = metadata.get("split.count", 0)
        if not isinstance(count, int):
            raise InputError(f"{path} cannot be read as GGUF: its split.count is {count!r}; is the file whole?")
        for number in range(2, count + 1):
            tensors |= _further(path, number, count)
        wanted = metadata.get("split.tensors.count", len(tensors))
        if count > 1 and wanted != len(tensors):
            raise InputError(f"{path} names {wanted} tensors, and its {count} parts hold {len(tensors)}")
        return cls(path, metadata, tensors)

    @property
    def architecture(self) -> str:
        """The architecture's name in GGUF."""
        return str(self.metadata["general.architecture"])

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value of the architecture's own metadata, such as `block_count`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def token(self, kind: str) -> int | None:
        """Returns the token that the metadata names for a purpose, such as `eos`; None if outside of the vocabulary."""
        number, tokens = (self.metadata.get(f"tokenizer.ggml.{name}") for name in (f"{kind}_token_id", "tokens"))
        outside = isinstance(tokens, list) and isinstance(number, int) and not 0 <= number < len(tokens)
        return number if isinstance(number, int) and not outside else None

    def raw(self, tensor: StoredTensor) -> np.ndarray[Any, Any]:
        """Returns the mapped bytes of a tensor of a known type, uint8 [outputs, bytes]; a vector has one output."""
        data = np.memmap(tensor.path, np.uint8, "r", tensor.start, (_size(tensor),))
        return data.reshape(prod(tensor.shape[:-1]), -1)


def _further(path: Path, number: int, count: int) -> dict[str, StoredTensor]:
    """Returns the tensors of a further part. Raises InputError if it is missing, or a part of another file."""
    part = _part(path, number, count)
    metadata, tensors = _header(part)
    place, whole = metadata.get("split.no"), metadata.get("split.count")
    if (place, whole) != (number - 1, count):
        raise InputError(f"{part} is not part {number} of {count} of its model")
    return tensors


def _part(path: Path, number: int, count: int) -> Path:
    """Returns the path of another part. Raises InputError if it is missing."""
    named = PART.fullmatch(path.name)
    if named is None or int(named[3]) != count:
        raise InputError(
            f"{path} is part 1 of {count}, and the others cannot be found: its name must end in "
            f"-00001-of-{count:05}.gguf, and theirs alike"
        )
    part = path.with_name(f"{named[1]}-{number:05}-of-{count:05}.gguf")
    if not part.is_file():
        raise InputError(f"part {number} of {count}: {part} is absent; all parts of a model lie in one folder")
    return part


def _header(path: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    try:
        with path.open("rb") as opened, mmap(opened.fileno(), 0, access=ACCESS_READ) as data:
            return _read(path, data)
    except (OSError, ValueError, struct.error) as error:
        reason = "its header ends early" if isinstance(error, struct.error) else str(error)
        raise InputError(f"{path} cannot be read as GGUF: {reason}; is the file whole?") from error


class _Cursor:
    """A position in the header's bytes, which advances with every value that is read."""

    def __init__(self, data: mmap) -> None:
        self.data, self.place = data, 0

    def numbers(self, kind: str, count: int = 1) -> tuple[Any, ...]:
        form = f"<{count}{kind}"
        if self.place + (size := struct.calcsize(form)) > len(self.data):
            raise ValueError("its header ends early")
        self.place += size
        return struct.unpack_from(form, self.data, self.place - size)

    def text(self) -> str:
        (length,) = self.numbers("Q")
        if self.place + length > len(self.data):
            raise ValueError("its header ends early")
        self.place += length
        return self.data[self.place - length : self.place].decode("utf-8", "replace")

    def texts(self, count: int) -> list[str]:
        """Reads several strings, in a short loop because tokens and merges are hundreds of thousands."""
        found, place, data = [], self.place, self.data
        for _ in range(count):
            end = place + 8 + int.from_bytes(data[place : place + 8], "little")
            if end > len(data) or place + 8 > len(data):
                raise ValueError("its header ends early")
            found.append(data[place + 8 : end].decode("utf-8", "replace"))
            place = end
        self.place = place
        return found

    def value(self, kind: int) -> Any:
        if kind in NUMBERS:
            (found,) = self.numbers(NUMBERS[kind])
            return float(str(np.float32(found))) if kind == FLOAT else found  # 1e-05 instead of 9.999999747378752e-06
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            raise ValueError(f"its metadata has a value of the unknown type {kind}")
        inner, count = self.numbers("I")[0], self.numbers("Q")[0]
        if inner in NUMBERS:
            return list(self.numbers(NUMBERS[inner], count))
        if inner == STRING:
            return self.texts(count)
        return [self.value(inner) for _ in range(count)]


def _read(path: Path, data: mmap) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    cursor = _Cursor(data)
    if data[:4] != MAGIC:
        raise ValueError("not a GGUF file")
    cursor.place = 4
    (version,), (count, values) = cursor.numbers("I"), cursor.numbers("Q", 2)
    if version not in VERSIONS:
        raise ValueError(f"its version is {version}, and {' and '.join(map(str, VERSIONS))} are read")
    metadata: dict[str, Any] = {}
    for _ in range(values):
        key = cursor.text()
        metadata[key] = cursor.value(cursor.numbers("I")[0])
    table = [_entry(cursor) for _ in range(count)]
    step = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(step, int) or step < 1:
        raise ValueError(f"its alignment is {step!r}")
    first = -(-cursor.place // step) * step
    tensors = {name: StoredTensor(name, shape, kind, first + offset, path) for name, shape, kind, offset in table}
    for tensor in tensors.values():
        if tensor.kind in KINDS and tensor.start + _size(tensor) > len(data):
            missing = tensor.start + _size(tensor) - len(data)
            raise ValueError(f"{tensor.name} ends {missing:,} bytes after the file's end")
    return metadata, tensors


def _entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], str, int]:
    """Reads a row of the table of tensors: name, shape, type, offset."""
    name = cursor.text()
    shape = cursor.numbers("Q", cursor.numbers("I")[0])[::-1]  # GGUF stores the fastest dimension first
    (kind,), (offset,) = cursor.numbers("I"), cursor.numbers("Q")
    return name, shape, TYPE_NAMES.get(kind, f"number {kind}"), offset


def _size(tensor: StoredTensor) -> int:
    """Returns the size of a tensor of a known type in bytes. Raises ValueError if blocks do not divide its inputs."""
    kind = KINDS[tensor.kind]
    if not tensor.shape or tensor.shape[-1] % kind.numbers:
        raise ValueError(f"{tensor.name} has the shape {tensor.shape}, which {tensor.kind} blocks do not divide")
    return prod(tensor.shape) // kind.numbers * kind.size
