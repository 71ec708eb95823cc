"""A hook of the site's build: the pages of docs/methods/ are found, not listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SECTION, INDEX = "Methods", "methods/index.md"


def on_config(config: Any, **_: Any) -> Any:
    """Returns MkDocs' settings with every method's page in the navigation."""
    docs = Path(config["docs_dir"])
    pages = sorted(path.relative_to(docs).as_posix() for path in docs.glob("methods/*.md"))
    section = next(entry for entry in config["nav"] if SECTION in entry)
    section[SECTION] = [INDEX, *(page for page in pages if page != INDEX)]
    return config
