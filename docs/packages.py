"""Lists that the repository derives from its plugins: requirements-plugins.txt and the extra `methods`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NOTE = "# Written by docs/generate.py: every folder of plugins/, with what its tests need.\n"
METHODS = re.compile(r"^(methods = \[.*\n)(?:    .*\n)*(\]\n)", re.MULTILINE)


def read_plugins(root: Path = ROOT) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Each plugin's folder and its pyproject.toml."""
    for path in sorted(root.glob("plugins/*/pyproject.toml")):
        yield path.parent, tomllib.loads(path.read_text(encoding="utf-8"))


def render_requirements(root: Path = ROOT) -> str:
    """An editable install of every plugin, with its extra `testing` where it has one."""
    lines = []
    for folder, about in read_plugins(root):
        extra = "[testing]" if "testing" in about["project"].get("optional-dependencies", {}) else ""
        lines.append(f"-e {folder.relative_to(root).as_posix()}{extra}\n")
    return NOTE + "".join(lines)


def render_project(root: Path = ROOT) -> str:
    """The core's pyproject.toml with all plugins in the extra `methods`, in the range of versions they ask of the core.

    A plugin stays out with `methods = false` in the table `tool.specframe` of its own pyproject.toml.
    """
    names = []
    for _, about in read_plugins(root):
        if about.get("tool", {}).get("specframe", {}).get("methods", True):
            project = about["project"]
            core = next(one for one in project["dependencies"] if re.match(r"specframe\b(?!-)", one))
            names.append(f'    "{project["name"]}{core.removeprefix("specframe")}",\n')
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    filled, count = METHODS.subn(lambda found: found[1] + "".join(names) + found[2], text)
    if count != 1:
        raise ValueError("pyproject.toml has no extra `methods`")
    return filled
