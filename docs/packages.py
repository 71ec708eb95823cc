"""Lists that the repository derives from its plugins, and the places that state the version of specframe.

``python docs/packages.py`` writes the version in `specframe/_version.py` everywhere else; then the plugins, whose range
moves with it, are installed again.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specframe._version import __version__
from specframe.recipes.versions import series

ROOT = Path(__file__).resolve().parents[1]
NOTE = "# Written by docs/generate.py: every folder of plugins/, with what its tests need.\n"
RELEASE = re.compile(r'(^version = "|^version: |^specframe |this is )\d+\.\d+\.\d+', re.MULTILINE)
RANGE = re.compile(r"(\bspecframe[\w-]*(?:\[\w+\])?)>=[\d.]+,<[\d.]+")
RELEASE_PAGES = ("CITATION.cff", "docs/howto/share.md", "docs/quickstart.md")
RANGE_PAGES = ("docs/howto/share.md", "docs/tutorials/first-plugin.md")
OWN_VERSION = "specframe-example"
"""The plugin of the tutorial, which has a version of its own."""
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
    return in_range(filled)


def in_range(text: str) -> str:
    """The text with the releases that keep this one's interface, wherever it has a range of specframe's."""
    return RANGE.sub(rf"\g<1>{series(__version__)}", text)


def render_versions(root: Path = ROOT) -> dict[str, str]:
    """The files that state the version in `specframe/_version.py`: the plugins' pyproject.toml, and some pages."""
    plugins = {folder: about["project"]["name"] for folder, about in read_plugins(root)}
    projects = {(folder / "pyproject.toml").relative_to(root).as_posix(): name for folder, name in plugins.items()}
    released = {*RELEASE_PAGES, *(path for path, name in projects.items() if name != OWN_VERSION)}
    ranged = {*RANGE_PAGES, *projects}
    found = {}
    for path in sorted(released | ranged):
        text = (root / path).read_text(encoding="utf-8")
        text = RELEASE.sub(rf"\g<1>{__version__}", text) if path in released else text
        found[path] = in_range(text) if path in ranged else text
    return found


if __name__ == "__main__":
    for name, text in render_versions().items():
        (ROOT / name).write_text(text, encoding="utf-8")
    (ROOT / "pyproject.toml").write_text(render_project(), encoding="utf-8")
