"""Entry point of the command line: a user's error is one clear line and exit status 2."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper

import click
from click.shell_completion import shell_complete

from specframe.cli.group import COMPLETE, PROGRAM, specframe
from specframe.files.text import printable, require_unicode
from specframe.kernel.errors import SpecframeError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk."""
NAMED = ("--model", "--recipe", "--target")
"""Options of other programs that correspond to a command's argument."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status.

    The status is 0, 1 for a violated guarantee, 2 for invalid input, 130 for Ctrl-C, 141 for a closed pipe. click's own
    `main` ends the process, and has status 1 for both Ctrl-C and a closed pipe.
    """
    _print_whatever_comes()
    try:
        if arguments is None and (instruction := os.environ.get(COMPLETE)):
            with suppress(Exception):  # shell completion cannot show messages
                shell_complete(specframe, {}, PROGRAM, COMPLETE, instruction)
            return 0
        words = list(sys.argv[1:] if arguments is None else arguments)
        for word in words:
            require_unicode(word, "command line")
        color = False if os.environ.get("NO_COLOR") else None
        with _warnings_in_one_line(), specframe.make_context(PROGRAM, words, color=color) as context:
            status = specframe.invoke(context)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        print(printable(_describe(error)), file=sys.stderr)
        return 2
    except SpecframeError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    except (KeyboardInterrupt, click.Abort) as interrupt:
        print(printable(str(interrupt)) or "interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the pipe's reader has ended: no output can be written
        return 141
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python fails again when it exits
        return 2


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Prints warnings for users without the line of code that they come from."""
    usual = warnings.formatwarning

    def in_one_line(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        return f"{message}\n" if category is FutureWarning else usual(message, category, filename, lineno, line)

    warnings.formatwarning = in_one_line
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _print_whatever_comes() -> None:
    """Makes characters that the terminal's encoding lacks print as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _describe(error: click.ClickException) -> str:
    """Returns one line: the command, what is wrong with its arguments, and where all of them are listed."""
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    path = context.command_path if context else PROGRAM
    arguments = [param.name for param in context.command.params if isinstance(param, click.Argument)] if context else []
    if (
        isinstance(error, click.NoSuchOption)
        and error.option_name in NAMED
        and {"recipe", "contestants"} & {*arguments}
    ):
        message = f"No such option '{error.option_name}'. A recipe or model is named without one: {path} MODEL"
    return f"{path}: {message} (`{path} --help` lists all)"
