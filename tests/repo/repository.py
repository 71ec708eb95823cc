"""The repository as its tests see it: its root, its files and the fenced blocks of its pages."""

from __future__ import annotations

import re
import subprocess
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
BASES = sorted(ROOT.glob("recipes/base/*.yaml"))
"""Shared settings of one target's recipes, which extend them."""
SUITES = sorted(ROOT.glob("recipes/suites/*.yaml"))
"""Benches of the recipes, which are none themselves."""
RECIPES = sorted({*ROOT.glob("recipes/**/*.yaml")} - {*BASES, *SUITES})
METHODS = sorted(path for path in RECIPES if not path.stem.endswith("-int4"))
"""The recipes of one method each, around the published target, as it is and not quantized, and the small one."""
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))

FENCE = re.compile(
    r"^(?:<!-- (?P<mark>[\w ]+) -->\n)?"  # what the test must know, invisible on the page
    r"```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    title: str | None
    """The file it is, where the page shows one."""
    mark: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name(path: Path) -> str:
    """The path as messages show it."""
    return path.relative_to(ROOT).as_posix()


@cache
def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page=name(page),
            line=text.count("\n", 0, match.start("language")) + 1,
            language=match["language"],
            title=match["title"],
            mark=match["mark"],
            text=match["text"],
        )
        for match in FENCE.finditer(text)
    ]


@cache
def files() -> list[Path]:
    """Every file that is, or is about to be, part of the repository: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return [path for path in map(ROOT.joinpath, filter(None, listed.split("\0"))) if path.is_file()]


def sources(folder: Path) -> list[Path]:
    """The Python files below a folder."""
    return sorted(folder.rglob("*.py"))


def packages() -> set[str]:
    """The packages of this repository."""
    about = [ROOT / "pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml")]
    return {tomllib.loads(path.read_text(encoding="utf-8"))["project"]["name"] for path in about}
