"""Packed weights in the user's cache: written once, memory-mapped by every later start, the oldest removed first.

Mapped pages are shared between processes. Files are replaced by renaming and removed by unlinking, so another process's
mapping stays intact; only a program that truncates a file in place could remove pages that another one reads.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from io import BufferedReader
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import torch
from torch import Tensor

from specframe.kernel.errors import InputError
from specframe.native import blocks
from specframe.native.build import make_folder, refuse_strangers
from specframe.recipes.folders import cache_folder

log = logging.getLogger(__name__)

SIZE = "SPECFRAME_PACKED_GB"
"""Environment variable: the most gigabytes of packed weights in the cache; 0 keeps none."""
GIGABYTES = 16.0
SUFFIX = ".packed"
MAGIC = b"specframe packed weights 1\n"
LINE = 64
"""Alignment of tensors, in bytes."""
SMALLEST = 32 << 20
"""Bytes below which weights are not cached, since packing them is as fast as reading them."""
PIECE = 1 << 20
ENDS = 1 << 16
"""Number of bytes at both ends of a file that identify it: the header is at one of them."""
DTYPES = {str(dtype): dtype for dtype in (torch.uint8, torch.bfloat16, torch.float16, torch.float32)}


@dataclass(frozen=True)
class PackedWeights:
    """The tensors of a model as native code reads them, and further values about them."""

    tensors: Mapping[str, Tensor]
    notes: Mapping[str, Any]
    """Further values, in JSON types."""
    memory: mmap.mmap | None = None

    def release(self) -> None:
        """Releases the pages that were read so far; they are mapped again when they are read again."""
        if self.memory is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.memory.madvise(mmap.MADV_DONTNEED)


@dataclass(frozen=True)
class PackedFile:
    """A file of packed weights."""

    path: Path
    model: str
    precision: str
    bytes: int
    used: float
    """Time of its last use, in seconds since 1970."""


def weights_folder() -> Path:
    """The folder of packed weights."""
    return cache_folder() / "weights"


def entry_of(files: Iterable[Path], *facts: object) -> Path | None:
    """The cache file of the weights packed from `files`, with `facts` such as the precision.

    A file is identified by its path, size, time and both of its ends; the layout of packed weights is also part of the
    key. None if the cache keeps none.
    """
    if _limit() <= 0:
        return None
    digest = sha256(repr((MAGIC, facts)).encode() + Path(blocks.__file__).read_bytes())
    for path in files:
        found = path.stat()
        digest.update(repr((str(path.resolve()), found.st_size, found.st_mtime_ns)).encode())
        with path.open("rb") as opened:
            digest.update(opened.read(ENDS))
            opened.seek(max(found.st_size - ENDS, 0))
            digest.update(opened.read())
    return weights_folder() / f"{digest.hexdigest()[:24]}{SUFFIX}"


def read_packed(path: Path) -> PackedWeights | None:
    """The memory-mapped weights of a file; None unless it is complete and only this user can write it."""
    try:
        with path.open("rb") as opened:
            refuse_strangers(path, "packed weights are not read from")
            if (notes := _check(opened)) is None:
                path.unlink()
                log.warning("the packed weights in %s were damaged; they are made again", path)
                return None
            memory = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)  # writes do not reach the file
    except FileNotFoundError:
        return None
    except (OSError, InputError) as error:
        log.warning("%s", error)
        return None
    with suppress(OSError):
        os.utime(path)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    tensors = {}
    for name, (dtype, shape, start, size) in notes.pop("tensors").items():
        tensors[name] = whole[start : start + size].view(DTYPES[dtype]).view(shape)
    return PackedWeights(tensors, notes, memory)


def write_packed(path: Path, packed: PackedWeights) -> None:
    """Writes weights atomically, after removing the oldest others beyond the limit.

    If the cache cannot be written, the next start is slower, and a warning is logged.
    """
    places, end = {}, 0
    for name, tensor in packed.tensors.items():
        places[name] = (str(tensor.dtype), list(tensor.shape), end, tensor.nbytes)
        end += -(-tensor.nbytes // LINE) * LINE
    if not SMALLEST <= end <= _limit():
        return
    try:
        make_folder(path.parent)
        refuse_strangers(path, "packed weights are not kept in")
        _make_room(end)
        _write(path, packed, places)
    except (OSError, InputError) as error:
        reason = error if isinstance(error, InputError) else f"packed weights are not kept in {path.parent}: {error}"
        log.warning("%s", reason)


def _write(path: Path, packed: PackedWeights, places: dict[str, tuple[str, list[int], int, int]]) -> None:
    head = _header(packed.notes, places)
    with NamedTemporaryFile(dir=path.parent, prefix=".", suffix=".part", delete=False) as opened:
        try:
            digest = sha256(head)
            opened.write(head)
            for tensor in packed.tensors.values():
                content = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data
                padding = bytes(-content.nbytes % LINE)
                for part in (content, padding):
                    opened.write(part)
                    digest.update(part)
            opened.write(digest.digest())
            opened.close()
            Path(opened.name).replace(path)
        except BaseException:
            Path(opened.name).unlink(missing_ok=True)
            raise


def _header(notes: Mapping[str, Any], places: dict[str, tuple[str, list[int], int, int]]) -> bytes:
    """The bytes before the first tensor: magic, length and JSON, with offsets from the beginning of the file."""
    length = -1
    begin = 0
    while length != begin:  # the number of digits of the offsets changes the length
        begin = max(length, 0)
        listed = {name: (dtype, shape, begin + start, size) for name, (dtype, shape, start, size) in places.items()}
        text = json.dumps({**notes, "tensors": listed}).encode()
        length = -(-(len(MAGIC) + 8 + len(text)) // LINE) * LINE
    filled = text.ljust(length - len(MAGIC) - 8)
    return MAGIC + len(filled).to_bytes(8, "little") + filled


def _check(opened: BufferedReader) -> dict[str, Any] | None:
    """The notes of an open file; None unless it ends with the digest of its contents."""
    notes = _notes(opened)
    size = os.fstat(opened.fileno()).st_size - sha256().digest_size
    digest, left = sha256(), size
    opened.seek(0)
    while left > 0 and (piece := opened.read(min(PIECE, left))):
        digest.update(piece)
        left -= len(piece)
    return notes if left == 0 and opened.read() == digest.digest() else None


def _notes(opened: BufferedReader) -> dict[str, Any] | None:
    if opened.read(len(MAGIC)) != MAGIC:
        return None
    with suppress(ValueError):
        notes: dict[str, Any] = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        return notes
    return None


def _limit() -> float:
    """The most bytes of all packed weights. Raises InputError for a limit that is not a number."""
    given = os.environ.get(SIZE, "")
    try:
        return float(given or GIGABYTES) * 1e9
    except ValueError as error:
        raise InputError(f"{SIZE} is a number of gigabytes, not {given!r}") from error


def _make_room(wanted: int) -> None:
    """Removes the least recently used entries until there is room for `wanted` bytes within the limit."""
    entries = sorted(list_entries(), key=lambda entry: entry.used)
    used = sum(entry.bytes for entry in entries)
    for entry in entries:
        if used + wanted <= _limit():
            return
        entry.path.unlink(missing_ok=True)
        used -= entry.bytes


def list_entries() -> list[PackedFile]:
    """All packed weights in the cache; those whose header cannot be read have no model and no precision."""
    found = []
    for path in sorted(weights_folder().glob(f"*{SUFFIX}")):
        with suppress(FileNotFoundError), path.open("rb") as opened:
            notes, state = _notes(opened) or {}, os.fstat(opened.fileno())
            model, precision = (str(notes.get(name, "")) for name in ("model", "precision"))
            found.append(PackedFile(path, model, precision, state.st_size, state.st_mtime))
    return found


def clear_entries() -> int:
    """Removes all packed weights and unfinished files of killed processes; returns the number of bytes removed.

    Raises InputError if one cannot be removed.
    """
    removed = 0
    for path in [*weights_folder().glob(f"*{SUFFIX}"), *weights_folder().glob(".*.part")]:
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f"{path} cannot be removed: {error.strerror}") from error
        removed += size
    return removed
