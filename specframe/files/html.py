"""Tables that notebooks show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from specframe.files.text import printable


def render_table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """An HTML table of texts; line feeds in them stay, and nothing in them is markup."""
    title = Markup("<caption style='text-align: left'>{}</caption>").format(printable(caption)) if caption else ""
    body = Markup("").join(_row("td", row) for row in rows)
    return str(Markup("<table>{}<thead>{}</thead><tbody>{}</tbody></table>").format(title, _row("th", head), body))


def _row(cell: str, texts: Iterable[str]) -> Markup:
    lines = (escape(printable(text)).replace("\n", Markup("<br>")) for text in texts)
    return Markup("<tr>{}</tr>").format(
        Markup("").join(Markup("<{0} style='text-align: left'>{1}</{0}>").format(Markup(cell), line) for line in lines)
    )
