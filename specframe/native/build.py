"""The native library: shipped with specframe, or compiled once on this machine and cached.

Loading a library runs its code, so cached files must be writable only by this user or the administrator.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shlex
import shutil
import stat
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from specframe.kernel.errors import InputError
from specframe.native.abi import HEADER, check_layout, digest_of, functions, layout_source
from specframe.recipes.folders import cache_folder

SOURCE = Path(__file__).with_name("passes.cpp")
HEADERS = tuple(sorted(Path(__file__).parent.glob("*.h")))
COMMON = (
    *("-std=c++17", "-O3", "-shared", "-fPIC"),
    # Sums keep the source's order. -ffast-math would change how the whole process treats denormal numbers.
    *("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros"),
)
WIDE = ("-mprefer-vector-width=512",)  # an option of x86-64 only
# Tuned for one processor, g++ contracts other products and sums (on AMD's it avoids chains of FMA): not a wheel's bits.
UNTUNED = ("-mtune=generic",)
FLAGS = ("-march=native", *((*UNTUNED, *WIDE) if platform.machine() in ("x86_64", "AMD64") else ()), *COMMON)
SWITCH = "SPECFRAME_NATIVE"
"""Environment variable: with `compile`, the library is compiled even if one was shipped with specframe."""

SECONDS = 1200
"""Time limit of a compiler in seconds: it takes half a minute alone, far more on a busy machine."""
FOLDER = Path(__file__).with_name("prebuilt")
"""Folder of the libraries in a wheel; missing in a checkout."""


class Group(NamedTuple):
    """Processors with common instruction sets, which share a library."""

    name: str
    options: tuple[str, ...]
    """Options of the compiler, g++ or clang++."""
    features: frozenset[str]
    """Processor features that the library needs, as named in /proc/cpuinfo."""

    def library(self, folder: Path) -> Path:
        """Returns the library's file in such a folder."""
        return folder / f"specframe-{self.name}.so"


def _x86_groups() -> tuple[Group, ...]:
    """Returns the groups of x86-64, those with more instructions first."""
    avx2 = frozenset({"avx", "avx2", "fma", "f16c", "bmi1", "bmi2", "abm", "movbe", "xsave"})
    vnni = avx2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}
    bf16 = vnni | {"avx512_bf16"}
    with_vnni = ("-march=x86-64-v4", *WIDE, "-mavx512vnni")
    with_bf16 = (*with_vnni, "-mavx512bf16")
    return (
        Group("x86-64-amx", (*with_bf16, "-mamx-tile", "-mamx-bf16"), bf16 | {"amx_tile", "amx_bf16"}),
        Group("x86-64-bf16", with_bf16, bf16),
        Group("x86-64-vnni", with_vnni, vnni),
        Group("x86-64-avx2", ("-march=x86-64-v3",), avx2),
    )


def _arm_groups() -> tuple[Group, ...]:
    """Returns the groups of ARM64, those with more instructions first."""
    dots = frozenset({"asimd", "crc32", "atomics", "asimdrdm", "asimddp"})
    return (
        Group("arm64-bf16", ("-march=armv8.2-a+dotprod+bf16",), dots | {"bf16"}),
        Group("arm64-dots", ("-march=armv8.2-a+dotprod",), dots),
        Group("arm64", ("-march=armv8-a",), frozenset({"asimd"})),
    )


GROUPS = {"x86_64": _x86_groups(), "aarch64": _arm_groups()}
"""Groups by machine, as `platform.machine` names it."""


def fitting(machine: str, features: frozenset[str], folder: Path) -> Path | None:
    """Returns the library in the folder that uses most of a processor's features; None if none fits or exists."""
    libraries = (group.library(folder) for group in GROUPS.get(machine, ()) if group.features <= features)
    return next((library for library in libraries if library.is_file()), None)


def cpu_features() -> str:
    """Returns the line of /proc/cpuinfo with the processor's features; empty if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


@cache
def load_native(flags: tuple[str, ...] | None = None) -> ctypes.CDLL:
    """Returns the native library: the shipped one, if it fits this processor, otherwise one compiled with `FLAGS`.

    With `flags`, or if SPECFRAME_NATIVE is `compile`, it is compiled unless the cache has a complete one for this
    processor, compiler and source. Its functions raise MemoryError if there is no memory for temporary values. Raises
    InputError if no library fits and there is no compiler, if compiling fails, or if another user can write to the
    cache.
    """
    digest = digest_of([path.read_bytes() for path in (SOURCE, *HEADERS)])
    loaded = _shipped(digest) if flags is None else None
    if loaded is None:
        loaded = _compiled(flags or FLAGS, digest)
    for name, has_status, arguments in functions():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, _succeed if has_status else None
    return loaded


def _shipped(digest: str) -> ctypes.CDLL | None:
    """Returns the shipped library if it fits processor and sources, unless SPECFRAME_NATIVE is `compile`."""
    if wanted := os.environ.get(SWITCH):
        if wanted != "compile":
            raise InputError(f"{SWITCH} is compile or nothing, not {wanted!r}")
        return None
    library = fitting(platform.machine(), frozenset(cpu_features().split()), FOLDER)
    loaded = _open(library) if library else None
    try:
        if loaded is not None:
            check_layout(loaded, library, digest)
    except InputError:  # the sources have changed
        return None
    return loaded


def _compiled(flags: tuple[str, ...], digest: str) -> ctypes.CDLL:
    """Returns the library in the cache, compiled first if necessary."""
    compiler = _compiler()
    named = (digest, *compiler, _version(compiler), *flags, processor())
    key = sha256("\0".join(named).encode()).hexdigest()[:16]
    library = cache_folder() / "native" / f"specframe-{key}.so"
    refuse_strangers(library)
    loaded = _open(library) if is_whole(library) else None
    if loaded is None:
        _compile(compiler, flags, library, digest)
        loaded = _open(library)
    if loaded is None:
        raise InputError(f"the native library in {library.parent} cannot be loaded, though it was just compiled")
    check_layout(loaded, library, digest)
    return loaded


def compile_shipped(folder: Path, machine: str) -> list[Path]:
    """Compiles the libraries of a wheel for a machine, without debug symbols.

    Raises InputError if there is no compiler, or if compiling fails.
    """
    digest = digest_of([path.read_bytes() for path in (SOURCE, *HEADERS)])
    made = []
    for group in GROUPS.get(machine, ()):
        made.append(group.library(folder))
        _compile(_compiler(), (*group.options, *COMMON, "-s"), made[-1], digest)
    return made


def _succeed(status: int) -> None:
    """Raises MemoryError for the status of a failed allocation, ValueError for that of invalid arguments."""
    if status == 1:
        raise MemoryError("the native passes have no memory left to compute with")
    if status:
        raise ValueError(
            "a tree has tokens beyond the vocabulary, parents that are not earlier nodes, or nodes below its levels"
        )


def are_loaded() -> bool:
    """Returns whether this process has already loaded the native library, so that calling it has no extra cost."""
    return load_native.cache_info().currsize > 0


def _compiler() -> tuple[str, ...]:
    """Returns the compiler's command: CXX, which may have arguments, otherwise g++ or clang++.

    Raises InputError if there is none on this machine.
    """
    if named := shlex.split(os.environ.get("CXX", "")):
        if (found := shutil.which(named[0])) is None:
            raise InputError(f"CXX names {named[0]}, which is no program on this machine")
        return (found, *named[1:])
    if (found := shutil.which("g++") or shutil.which("clang++")) is None:
        raise InputError("there is no C++ compiler (g++), and no library for this processor came with specframe")
    return (found,)


def _version(compiler: tuple[str, ...]) -> str:
    """Returns the compiler's version; empty if it reports none."""
    try:
        return subprocess.run([*compiler, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _open(library: Path) -> ctypes.CDLL | None:
    """Loads the library; None if the system's loader refuses it, for example one of another system."""
    try:
        return ctypes.CDLL(str(library))
    except OSError:
        return None


def _compile(compiler: tuple[str, ...], flags: tuple[str, ...], library: Path, digest: str) -> None:
    """Writes the library, completely or not at all."""
    try:
        make_folder(library.parent)
        with TemporaryDirectory(dir=library.parent) as folder:
            made = Path(folder) / library.name
            layout = made.with_suffix(".cpp")
            layout.write_text(layout_source(digest), encoding="utf-8")
            command = [*compiler, *flags, f"-I{HEADER.parent}", str(SOURCE), str(layout), "-o", str(made)]
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
    """Returns the identity of a processor, as far as -march=native compiles differently for it."""
    return f"{platform.machine()} {platform.processor()} {cpu_features()}"


def make_folder(folder: Path) -> None:
    """Creates the folder and missing parents, writable for this user alone.

    Raises OSError if that fails.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o755, exist_ok=True)
        folder.chmod(folder.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))


def refuse_strangers(file: Path, refused: str = "the native library is not loaded from") -> None:
    """Raises InputError where another user can write to a file of the cache, to its folder, or to one above that.

    Above, a folder may belong to a group that can write, or be one like /tmp, where only the owner moves a file. The
    error begins with what is `refused`.
    """
    if os.name != "posix":
        return
    whole = file.resolve()
    for path in (whole, *whole.parents):
        if not path.exists():
            continue
        found = path.stat()
        near = path in (whole, whole.parent)
        open_to = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH if near else stat.S_IWOTH)
        if found.st_uid not in (0, os.getuid()):
            raise InputError(f"{refused} {file.parent}: {path} is another user's")
        if open_to and (near or not found.st_mode & stat.S_ISVTX):
            raise InputError(f"{refused} {file.parent}: others can write to {path}")


def seal(library: Path) -> None:
    """Adds the digest of a library after its end, where the system's loader does not look."""
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
