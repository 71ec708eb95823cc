"""Structs and functions of `abi.h` for ctypes, parsed from its text, and the check that a library matches them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ctypes import CDLL, POINTER, Structure, c_char, c_double, c_float, c_int64, c_void_p, sizeof
from hashlib import sha256
from pathlib import Path
from typing import Any

from specframe.kernel.errors import InputError

HEADER = Path(__file__).with_name("abi.h")
_TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.DOTALL)
_SCALARS = {"int64_t": c_int64, "float": c_float, "double": c_double}
DIGEST = 64
"""Number of characters of a digest."""


def declared_structs() -> dict[str, str]:
    """Returns the declarations of each struct's fields, by its name."""
    return dict(re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", _TEXT, re.DOTALL))


def _fields(struct: str, *nested: type[Structure]) -> list[tuple[str, Any]]:
    """Returns the fields of a struct, given the structs it contains. Pointers are `c_void_p`: addresses, or None."""
    types = {**_SCALARS, **{one.__name__: one for one in nested}}
    found: list[tuple[str, Any]] = []
    for declaration in declared_structs()[struct].split(";"):
        if words := declaration.split():
            kind = next(word for word in words if word != "const").rstrip("*")
            names = declaration.split(kind, 1)[1].split(",")
            found += [(re.findall(r"\w+", name)[-1], c_void_p if "*" in name else types[kind]) for name in names]
    return found


class Weight(Structure):
    """A matrix."""

    _fields_ = _fields("Weight")


class Layer(Structure):
    """The weights of a decoder layer."""

    _fields_ = _fields("Layer", Weight)


class DecoderSizes(Structure):
    """The sizes of a decoder."""

    _fields_ = _fields("DecoderSizes")


class Batch(Structure):
    """The rows of one forward pass, and their slots in the cache."""

    _fields_ = _fields("Batch")


class Cell(Structure):
    """A layer of an LSTM."""

    _fields_ = _fields("Cell", Weight)


class Network(Structure):
    """A drafter's modules."""

    _fields_ = _fields("Network", Weight, DecoderSizes)


class SessionRows(Structure):
    """The rows of a drafter's session."""

    _fields_ = _fields("SessionRows")


class Pairs(Structure):
    """Newly committed pairs."""

    _fields_ = _fields("Pairs")


class Search(Structure):
    """A beam search."""

    _fields_ = _fields("Search")


class Trees(Structure):
    """Finished trees."""

    _fields_ = _fields("Trees")


class BoundedWeight(Structure):
    """An LM head with its 8-bit copy."""

    _fields_ = _fields("BoundedWeight", Weight)


class GreedyChoice(Structure):
    """Input and output of a pass that returns only the most likely tokens."""

    _fields_ = _fields("GreedyChoice")


class TopChunks(Structure):
    """The chunks of texts with the most attention mass, and the queries that attend."""

    _fields_ = _fields("TopChunks")


STRUCTS: tuple[type[Structure], ...] = (
    *(
        Weight,
        Layer,
        DecoderSizes,
        Batch,
        Cell,
        Network,
        SessionRows,
        Pairs,
        Search,
        Trees,
        BoundedWeight,
        GreedyChoice,
        TopChunks,
    ),
)


def functions() -> Iterator[tuple[str, bool, list[Any]]]:
    """Yields each function's name, whether it returns a status, and the types of its arguments."""
    structs = {one.__name__: one for one in STRUCTS}

    def type_of(argument: str) -> Any:
        kind = argument.replace("const ", "").split("*")[0].split()[0]
        if "*" not in argument:
            return _SCALARS[kind]
        return POINTER(structs[kind]) if kind in structs else c_void_p

    for result, name, arguments in re.findall(r"^(int|void) (\w+)\(([^)]*)\);", _TEXT, re.MULTILINE):
        yield name, result == "int", [type_of(argument.strip()) for argument in arguments.split(",")]


def layout_source(digest: str) -> str:
    """Returns C++ that exports what `check_layout` reads: a digest of the sources, and sizes and offsets in `abi.h`."""
    numbers = ",\n".join(expression for expression, _ in _layout())
    return (
        '#include <stddef.h>\n#include "abi.h"\n'
        f'extern "C" const char specframe_digest[] = "{digest}";\n'
        f'extern "C" const int64_t specframe_layout[] = {{\n{numbers}\n}};\n'
    )


def check_layout(library: CDLL, name: object, digest: str) -> None:
    """Raises InputError if a library was compiled from other sources, or has another layout of a struct."""
    layout = [*_layout()]
    try:
        found = bytes((c_char * DIGEST).in_dll(library, "specframe_digest")).decode("ascii", "replace")
        numbers = (c_int64 * len(layout)).in_dll(library, "specframe_layout")
    except ValueError:  # it exports none
        found = ""
    if found != digest:
        raise InputError(f"{name} was compiled from other sources than those of this specframe: remove it")
    for (expression, wanted), number in zip(layout, numbers, strict=True):
        if number != wanted:
            raise InputError(f"{name} does not fit this specframe: {expression} is {number} there, not {wanted}")


def digest_of(sources: list[bytes]) -> str:
    """Returns the digest of a library's sources, including that of the layout."""
    return sha256(b"\0".join([*sources, layout_source("").encode()])).hexdigest()


def _layout() -> Iterator[tuple[str, int]]:
    """Yields each struct's size, and each field's offset and size: as a C expression, and for ctypes."""
    for one in STRUCTS:
        struct = one.__name__
        yield f"sizeof({struct})", sizeof(one)
        for name, *_ in one._fields_:
            field = getattr(one, name)
            yield f"offsetof({struct}, {name})", field.offset
            yield f"sizeof((({struct}*)0)->{name})", field.size
