"""External text: safe forms for printing, storing, and display on a terminal or in a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from markupsafe import Markup, escape

from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that control a terminal or the direction of writing, or cannot be encoded; not line feed and tab."""

ADDRESS = re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]*://[^\s\"'<>]+")
HIDDEN = "***"


def printable(text: str) -> str:
    r"""Returns the text with control characters as escapes, `\x1b`; a line may end in `\r\n`."""
    return CONTROL.sub(_escape, text.replace("\r\n", "\n"))


def printable_data(value: Any) -> Any:
    """Makes every text in plain data, names of fields included, printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable_data(name): printable_data(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [printable_data(entry) for entry in value]
    return value


def require_unicode(text: str, where: str) -> None:
    """Raises InputError for a text that no file or tokenizer can hold: invalid UTF-8, unpaired surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"{where}: it is not Unicode text (character {error.start + 1} is half of one)") from error


def redact(text: str) -> str:
    """Replaces users, passwords and keys in the text's addresses by `***`."""
    return ADDRESS.sub(lambda found: _redact(found[0]), text)


def has_secrets(address: str) -> bool:
    """Returns whether an address has parts that must not be shown: a user, a query or a fragment."""
    return _redact(address) != address


def _redact(address: str) -> str:
    try:
        parts = urlsplit(address)
    except ValueError:
        return HIDDEN
    host = parts.netloc.rpartition("@")[2]
    query, fragment = (HIDDEN if part else "" for part in (parts.query, parts.fragment))
    user = f"{HIDDEN}@" if "@" in parts.netloc else ""
    return parts._replace(netloc=user + host, query=query, fragment=fragment).geturl()


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def counted(count: int, noun: str) -> str:
    """Formats a count: `1 cycle`, `2 cycles`; thousands with a comma."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def open_console(stderr: bool = False) -> Console:
    """Returns a console that shows text literally, without markup or emoji names."""
    from rich.console import Console  # a late import: every command imports this module

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def render_table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """Returns an HTML table of texts; line feeds are kept, and nothing in the texts is markup."""
    title = Markup("<caption style='text-align: left'>{}</caption>").format(printable(caption)) if caption else ""
    body = Markup("").join(_row("td", row) for row in rows)
    return str(Markup("<table>{}<thead>{}</thead><tbody>{}</tbody></table>").format(title, _row("th", head), body))


def _row(cell: str, texts: Iterable[str]) -> Markup:
    lines = (escape(printable(text)).replace("\n", Markup("<br>")) for text in texts)
    return Markup("<tr>{}</tr>").format(
        Markup("").join(Markup("<{0} style='text-align: left'>{1}</{0}>").format(Markup(cell), line) for line in lines)
    )
