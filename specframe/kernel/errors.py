"""Errors a user can act on: one clear message each, with the problem and its fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sysconfig import get_path
from traceback import extract_tb


class SpecframeError(Exception):
    """Base class of every error that a user can fix; the command line prints it and exits with 2."""


class RecipeError(SpecframeError):
    """A recipe that cannot be read or does not validate; the message lists every problem, a line each."""


class MisfitError(RecipeError):
    """A recipe whose sections are each valid, but whose components do not fit together."""


class PluginError(SpecframeError):
    """A plugin or component that cannot be found or imported, or whose name is ambiguous."""


class CompositionError(SpecframeError):
    """Parts that do not fit together; the message names a part that would fit."""


class FetchError(SpecframeError):
    """A model that must be downloaded and cannot be reached: no network, or no package index that has it."""


class WeightsError(SpecframeError):
    """Weights that are missing, of the wrong shape, or not finite."""


class InputError(SpecframeError):
    """A prompt, data file or setting that cannot be used as given."""


@contextmanager
def needs_extra(extra: str, user: str) -> Iterator[None]:
    """Surrounds an import: if a package is missing, raises InputError with the command that installs the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or str(error)).partition(".")[0]
        raise InputError(f'{user} needs the package {missing}: pip install "specframe[{extra}]"') from error


LIBRARIES = frozenset({"torch", "transformers", "numpy", "tokenizers", "safetensors"})
"""Packages in which a part's own mistake surfaces; the line at fault is never one of theirs."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message; the name of its class if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def raised_at(error: BaseException, *own: Path) -> str:
    """The error in one line, with the file and line it was raised at.

    That is the last line outside this package, the folders `own`, Python's standard library and the libraries that
    parts call; without one, the last outside this package and those folders, or the last of all.
    """
    packages = {Path(__file__).resolve().parents[1], *(folder.resolve() for folder in own)}
    frames = extract_tb(error.__traceback__)
    outside = [frame for frame in frames if packages.isdisjoint(Path(frame.filename).resolve().parents)]
    frame = ([frame for frame in outside if not _of_library(frame.filename)] or outside or frames)[-1]
    message = " ".join(str(error).split())
    return f"{Path(frame.filename).name}:{frame.lineno}: {type(error).__name__}" + (f": {message}" if message else "")


def _of_library(file: str) -> bool:
    """Returns whether a file belongs to Python's standard library or to a library that parts call."""
    parts = Path(file).parts
    installed = [index for index, part in enumerate(parts) if part in ("site-packages", "dist-packages")]
    if installed:
        return parts[installed[-1] + 1] in LIBRARIES
    return file.startswith("<") or Path(file).is_relative_to(get_path("stdlib"))
