"""Questions of a conversation: typed lines, or lines of a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

from specframe.files.text import printable

if TYPE_CHECKING:
    from rich.console import Console

MARK = "\n> "
"""Text in front of a question."""
LINES = 4
"""Number of lines below a question that are kept free for completions."""


class TypedQuestions:
    """Typed questions, with a history and cursor keys; several pasted lines are one question.

    Commands and files are completed. Ctrl-C clears the line, Ctrl-D on an empty one ends, Alt-Enter begins another
    line.
    """

    def __init__(self, commands: Collection[str], of_files: Collection[str]) -> None:
        """Completes these commands, and files after those in `of_files`."""
        from prompt_toolkit import PromptSession  # only a conversation needs this import
        from prompt_toolkit.completion import NestedCompleter, PathCompleter
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()
        keys.add("escape", "enter")(lambda event: event.current_buffer.insert_text("\n"))
        files = PathCompleter(expanduser=True)
        completer = NestedCompleter({name: files if name in of_files else None for name in commands})
        self._session: PromptSession[str] = PromptSession(
            MARK, completer=completer, key_bindings=keys, reserve_space_for_menu=LINES
        )

    def ask(self) -> str | None:
        """Returns the next question without surrounding spaces; None at Ctrl-D."""
        while True:
            try:
                return self._session.prompt().strip()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return None


class PipedQuestions:
    """Questions from standard input, one per line, each repeated above its answer; invalid UTF-8 is replaced."""

    def __init__(self, console: Console) -> None:
        self._console = console
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")

    def ask(self) -> str | None:
        """Returns the next question; None at the end of the input."""
        line = sys.stdin.readline()
        self._console.print(MARK, end="")
        if not line:
            self._console.print()
            return None
        question = line.strip()
        self._console.out(printable(question), highlight=False)
        return question
