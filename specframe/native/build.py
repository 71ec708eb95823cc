"""The native library: built once by the machine's C++ compiler, for its processor, and kept in the user's cache.

Loading a library runs what it holds, so only this user, or the administrator, may have written it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import stat
import subprocess
from ctypes import POINTER, Structure, c_char_p, c_float, c_int64, c_void_p
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from specframe.kernel.errors import InputError
from specframe.recipes.folders import cache_folder

SOURCE = Path(__file__).with_name("passes.cpp")
HEADERS = tuple(
    Path(__file__).with_name(f"{name}.h")
    for name in ("gemm", "memory", "attention", "team", "topk", "search", "lstm", "draft", "slots", "votes", "screen")
)
FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"),
    *(("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()),
    # Sums keep the order of the source. -ffast-math would change how the whole process treats tiny numbers.
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
)

SECONDS = 300
"""Time that a compiler may take."""


class Weight(Structure):
    """A matrix, as native code takes it."""

    _fields_ = (("data", c_void_p), ("bias", c_void_p), ("outputs", c_int64), ("inputs", c_int64), ("bits", c_int64))


class Layer(Structure):
    """The weights of a decoder layer."""

    _fields_ = (
        *((name, c_void_p) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm", "token_norm")),
        ("normed_residual", c_int64),
        *((name, Weight) for name in ("qkv", "output", "gate_up", "down")),
    )


class DecoderSizes(Structure):
    """The sizes of a decoder."""

    _fields_ = (
        *((name, c_int64) for name in ("layers", "width", "heads", "kv_heads", "head_size", "rotary", "mlp")),
        *((name, c_float) for name in ("epsilon", "scale")),
    )


class Batch(Structure):
    """The rows of one forward pass, and where the cache has them."""

    _fields_ = (
        *((name, c_int64) for name in ("rows", "nodes", "first", "width", "cache_rows", "slots", "base")),
        *((name, c_void_p) for name in ("sees", "length", "visible", "places")),
        *((name, c_void_p) for name in ("positions", "cosine", "sine", "embeddings", "listed")),
        *((name, c_int64) for name in ("list_layers", "list_heads", "list_slots")),
        *(("tap_bits", c_int64), ("queries", c_void_p)),
        *((name, c_int64) for name in ("bits", "recent", "upper")),
        *((name, c_void_p) for name in ("planes", "key_scales", "value_scales")),
    )


class Ballot(Structure):
    """Queries that choose among pieces of texts."""

    _fields_ = (
        *((name, c_int64) for name in ("layers", "rows", "heads", "sharing", "steps", "size")),
        *((name, c_int64) for name in ("slots", "first", "tiles", "count")),
        *((name, c_void_p) for name in ("queries", "pieces", "asked", "ends", "best")),
    )


@cache
def load_native(flags: tuple[str, ...] = FLAGS) -> ctypes.CDLL:
    """The native library, compiled first unless the cache has it whole for this processor, compiler and source.

    Their functions raise MemoryError where there is no room for what they compute with. Raises InputError where there
    is no compiler, where it refuses, or where another user can write to the cache.
    """
    compiler = _compiler()
    sources = [path.read_bytes() for path in (SOURCE, *HEADERS)]
    named = (*compiler, _version(compiler), *flags, processor())
    key = sha256(b"\0".join([*sources, *map(str.encode, named)])).hexdigest()[:16]
    library = cache_folder() / "native" / f"specframe-{key}.so"
    refuse_strangers(library)
    loaded = _open(library) if is_whole(library) else None
    if loaded is None:
        _compile(compiler, flags, library)
        loaded = _open(library)
    if loaded is None:
        raise InputError(f"the native library in {library.parent} cannot be loaded, though it was just compiled")
    loaded.specframe_multiply.argtypes = [POINTER(Weight), c_void_p, c_int64, c_void_p]
    loaded.specframe_rank.argtypes = [c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p]
    loaded.specframe_rank.restype = None
    loaded.specframe_decode.argtypes = [
        *(POINTER(DecoderSizes), POINTER(Layer), POINTER(Batch)),
        *(c_void_p, c_void_p, c_void_p, POINTER(c_void_p), c_char_p),
    ]
    loaded.specframe_choose.argtypes = [
        *(POINTER(DecoderSizes), POINTER(Layer), POINTER(Batch)),
        *(c_void_p, c_void_p, POINTER(c_void_p), c_void_p),
    ]
    loaded.specframe_normalize.argtypes = [c_void_p, c_void_p, c_float, *(c_int64,) * 4, c_void_p]
    loaded.specframe_normalize.restype = None
    loaded.specframe_draft.argtypes = [c_void_p] * 5
    loaded.specframe_recur.argtypes = [
        *(c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_int64, c_void_p),
    ]
    loaded.specframe_vote.argtypes = [POINTER(Ballot)]
    loaded.specframe_copy.argtypes = [POINTER(Weight), c_void_p, c_void_p]
    loaded.specframe_copy.restype = None
    loaded.specframe_move.argtypes = [c_void_p, *(c_int64,) * 6, c_void_p, c_void_p]
    loaded.specframe_likeliest.argtypes = [c_void_p, c_void_p, c_int64, c_void_p]
    for name in ("multiply", "decode", "choose", "recur", "draft", "move", "vote", "likeliest"):
        function = getattr(loaded, f"specframe_{name}")
        function.restype = _succeed
    return loaded


def _succeed(status: int) -> None:
    """Raises MemoryError for the status of a function that found no memory, ValueError where it was misread."""
    if status == 1:
        raise MemoryError("the native passes have no memory left to compute with")
    if status:
        raise ValueError("a tree has tokens beyond the vocabulary, or depths beyond its nodes")


def are_loaded() -> bool:
    """Returns whether this process has loaded the native library already, so that it costs nothing to call."""
    return load_native.cache_info().currsize > 0


def _compiler() -> tuple[str, ...]:
    """The command of the compiler: what CXX names, which may have arguments, or else g++ or clang++.

    Raises InputError where it is not on this machine.
    """
    if named := shlex.split(os.environ.get("CXX", "")):
        if (found := shutil.which(named[0])) is None:
            raise InputError(f"CXX names {named[0]}, which is no program on this machine")
        return (found, *named[1:])
    if (found := shutil.which("g++") or shutil.which("clang++")) is None:
        raise InputError("there is no C++ compiler (g++)")
    return (found,)


def _version(compiler: tuple[str, ...]) -> str:
    """The version that the compiler reports; empty where it reports none."""
    try:
        return subprocess.run([*compiler, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _open(library: Path) -> ctypes.CDLL | None:
    """Loads the library; None where the system's loader refuses it, as one of another system."""
    try:
        return ctypes.CDLL(str(library))
    except OSError:
        return None


def _compile(compiler: tuple[str, ...], flags: tuple[str, ...], library: Path) -> None:
    """Writes the library, whole or not at all."""
    try:
        make_folder(library.parent)
        with TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            command = [*compiler, *flags, str(SOURCE), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
            if done.returncode:
                line = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
                raise InputError(f"{shlex.join(compiler)} cannot compile the native library: {line[:200]}")
            seal(made)
            made.replace(library)
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{shlex.join(compiler)} has not compiled the library within {SECONDS} seconds") from error
    except OSError as error:
        raise InputError(
            f"the native library cannot be written to {library.parent}: {error.strerror or error}"
        ) from error


def processor() -> str:
    """The identity of a processor, as far as -march=native compiles differently for it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()} {platform.processor()} {flags}"


def make_folder(folder: Path) -> None:
    """Makes the folder and those above it, as far as they are missing, for this user alone to write to.

    Raises OSError where that cannot be done.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o755, exist_ok=True)
        folder.chmod(folder.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def refuse_strangers(library: Path) -> None:
    """Raises InputError where another user can write to the library, to its folder, or to a folder above that one.

    Above, a folder may belong to a group that can write, or be one like /tmp, where only the owner moves a file.
    """
    if os.name != "posix":
        return
    whole = library.resolve()
    for path in (whole, *whole.parents):
        if not path.exists():
            continue
        found = path.stat()
        near = path in (whole, whole.parent)
        open_to = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH if near else stat.S_IWOTH)
        if found.st_uid not in (0, os.getuid()):
            raise InputError(f"the native library is not loaded from {library.parent}: {path} is another user's")
        if open_to and (near or not found.st_mode & stat.S_ISVTX):
            raise InputError(f"the native library is not loaded from {library.parent}: others can write to {path}")


def seal(library: Path) -> None:
    """Adds the digest of a library behind its end, where the system's loader does not look."""
    content = library.read_bytes()
    library.write_bytes(content + sha256(content).digest())
    library.chmod(0o755)


def is_whole(library: Path) -> bool:
    """Returns whether the file is there and ends with the digest of what precedes."""
    if not library.is_file():
        return False
    content = library.read_bytes()
    size = sha256().digest_size
    return sha256(content[:-size]).digest() == content[-size:]
