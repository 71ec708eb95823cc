"""A hook of the site's build: a page's first paragraph is its description, for search engines and link previews."""

from __future__ import annotations

import re
from typing import Any

LONGEST = 200
MARKUP = re.compile(r"```.*?```|<!--.*?-->|<[^>]+>|[`*]|\[([^]]*)\]\([^)]*\)", re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> None:
    """Sets the page's description for MkDocs, which calls it for every page; leaves the text as it is."""
    text = MARKUP.sub(r"\1", markdown.partition("\n")[2])
    paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
    first = next((p for p in paragraphs if p and not p.startswith(("#", "|", "!!!"))), "")
    if first:
        short = first if len(first) <= LONGEST else first[:LONGEST].rsplit(" ", 1)[0] + " ..."
        page.meta.setdefault("description", short)
