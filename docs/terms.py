"""A hook of the site's build: a term's first use on a page links to its entry in the glossary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from posixpath import relpath
from typing import Any

GLOSSARY = "glossary.md"
GENERATED = ("benchmark/", "reference/cli.md", "reference/components.md", "reference/python.md")
"""Pages of tables, which stay as they are."""
ENTRY = re.compile(r"^\*\*([^*]+)\*\*\n(?=:)", re.MULTILINE)
EVERYDAY = frozenset(
    {"block", "commit", "draft", "draw", "head", "law", "level", "depth", "node", "row", "slot", "tree", "path"}
)
"""Names that are everyday words, too: they have an entry, and no link to it."""
KEPT = re.compile(
    r"<svg.*?</svg>|^```.*?^```[^\n]*$|^~~~.*?^~~~[^\n]*$|<!--.*?-->|<[^>\n]+>|^#[^\n]*$|^\|[^\n]*$|^!!![^\n]*$|^\?\?\?[^\n]*$"
    r"|!?\[[^\]]*\]\([^)]*\)|!?\[[^\]]*\]\[[^\]]*\]|`[^`\n]*`|\$[^$\n]+\$",
    re.DOTALL | re.MULTILINE,
)
"""Matches text that is no prose or is a link already: drawings, code, comments, tags, headings, tables, links."""


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Adds links to the page's text, or anchors to the glossary's; MkDocs calls this for every page."""
    source: str = page.file.src_uri
    if source == GLOSSARY:
        return ENTRY.sub(lambda found: f"**{found[1]}**{{ #{anchor(found[1])} }}\n", markdown)
    if source.startswith(GENERATED):
        return markdown
    terms = read_terms(Path(config["docs_dir"]) / GLOSSARY)
    return link(markdown, terms, relpath(GLOSSARY, Path(source).parent.as_posix() or "."))


@cache
def read_terms(path: Path) -> Mapping[str, str]:
    """Every term of the glossary, with the anchor of its entry."""
    entries = ENTRY.findall(path.read_text(encoding="utf-8"))
    return {term.strip(): anchor(entry) for entry in entries for term in entry.split(",")}


def anchor(entry: str) -> str:
    """The anchor of an entry: its first term."""
    return "term-" + entry.partition(",")[0].strip().replace(" ", "-")


def link(markdown: str, terms: Mapping[str, str], glossary: str) -> str:
    """The text, in which the first use of every term in its prose is a link to the page `glossary`."""
    wanted = {term: place for term, place in terms.items() if term not in EVERYDAY}
    if not wanted:
        return markdown
    names = "|".join(re.escape(term) for term in sorted(wanted, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w/.-])({names})(s?)(?![\w/-])", re.IGNORECASE)
    linked: set[str] = set()

    def mark(found: re.Match[str]) -> str:
        term = found[1].lower()
        if term in linked or term not in wanted:
            return found[0]
        linked.add(term)
        return f"[{found[0]}]({glossary}#{wanted[term]}){{ .term }}"

    parts, end = [], 0
    for kept in KEPT.finditer(markdown):
        parts += [pattern.sub(mark, markdown[end : kept.start()]), kept[0]]
        end = kept.end()
    return "".join([*parts, pattern.sub(mark, markdown[end:])])
