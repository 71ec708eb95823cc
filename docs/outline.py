"""A hook of the site's build: llms.txt lists every page with its description, for programs that read the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Outline:
    """The pages as they are built, and their list."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, page: Any) -> None:
        """Adds a page that has been built."""
        self.lines.append(f"- [{page.title}]({page.url or '.'}): {page.meta.get('description', '')}".rstrip(": "))

    def write(self, config: Any) -> None:
        """Writes llms.txt into the site's folder, and begins a new list."""
        text = "\n".join(
            [f"# {config['site_name']}", "", f"> {config['site_description']}", "", *sorted(self.lines), ""]
        )
        (Path(config["site_dir"]) / "llms.txt").write_text(text, encoding="utf-8")
        self.lines.clear()


OUTLINE = Outline()


def on_page_context(context: Any, page: Any, **_: Any) -> Any:
    """Takes note of a page, which MkDocs is about to write."""
    OUTLINE.add(page)
    return context


def on_post_build(config: Any, **_: Any) -> None:
    """Writes the list when all pages are there."""
    OUTLINE.write(config)
