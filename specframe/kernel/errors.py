"""Errors a user can act on: one clear message each, with the problem and its fix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import extract_tb


class SpecframeError(Exception):
    """The root of every error that is the user's to fix; the command line prints it and exits with 2."""


class RecipeError(SpecframeError):
    """A recipe that cannot be read or does not validate; the message lists every problem, a line each."""


class MisfitError(RecipeError):
    """A recipe whose sections are valid each, and whose components do not fit together."""


class PluginError(SpecframeError):
    """A plugin or component that cannot be found or imported, or whose name is ambiguous."""


class CompositionError(SpecframeError):
    """Parts that do not fit together; the message names a part that would fit."""


class FetchError(SpecframeError):
    """A model that has to be fetched first and cannot be reached: no network, or no package index that has it."""


class WeightsError(SpecframeError):
    """Weights that are missing, of the wrong shape, or not finite."""


class InputError(SpecframeError):
    """A prompt, data file or setting that cannot be used as given."""


@contextmanager
def needs_extra(extra: str, user: str) -> Iterator[None]:
    """Surrounds an import: raises InputError with the command that installs the extra where a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or str(error)).partition(".")[0]
        raise InputError(f'{user} needs the package {missing}: pip install "specframe[{extra}]"') from error


def raised_at(error: BaseException) -> str:
    """The error in one line, with the file and line it was raised at: the last outside of this package, if any is."""
    package = Path(__file__).resolve().parents[1]
    frames = extract_tb(error.__traceback__)
    own = [frame for frame in frames if package not in Path(frame.filename).resolve().parents]
    frame = (own or frames)[-1]
    message = " ".join(str(error).split())
    return f"{Path(frame.filename).name}:{frame.lineno}: {type(error).__name__}" + (f": {message}" if message else "")
