"""Folders of specframe itself: the recipes that come with it, by name (`falcon`, `small/falcon`), and its cache."""

from __future__ import annotations

import difflib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from specframe.kernel.errors import RecipeError

SUFFIX = ".yaml"
PARTS = "base"
"""The folder of files that several recipes share and that are not recipes themselves."""
SUITES = "suites"
"""The folder of benches, which are not recipes."""
PAPERS = "papers"
"""The folder of recipes that follow their papers exactly; found by bare name if no other recipe has the name."""
CACHE = "SPECFRAME_CACHE"
"""Environment variable with another cache folder."""


def recipes_folder() -> Path | None:
    """The folder of specframe's own recipes: a checkout's, or the one in which a wheel installs them."""
    checkout = Path(__file__).parents[2] / "recipes"
    places = (checkout, Path(sysconfig.get_path("data")) / "share" / "specframe" / "recipes")
    return next((place for place in places if (place / f"{PARTS}/common{SUFFIX}").is_file()), None)


def shipped_recipes() -> Iterator[tuple[str, Path]]:
    """Yields the name and file of every recipe that comes with specframe, those for published targets first."""
    folder = recipes_folder()
    files = [path.relative_to(folder) for path in folder.rglob(f"*{SUFFIX}")] if folder is not None else []
    for file in sorted(files, key=lambda file: (len(file.parts), file)):
        if folder is not None and file.parts[0] not in (PARTS, SUITES):
            yield file.with_suffix("").as_posix(), folder / file


def find_recipe(name: str) -> Path:
    """The file of a path or a recipe's name, such as `small/coral` or, if no other name ends in it, `coral`.

    An existing file takes precedence. Raises RecipeError for a name that is unknown or ambiguous.
    """
    path = Path(name)
    if path.suffix or path.exists() or name.startswith(("/", ".", "~")):
        return path
    known = dict(shipped_recipes())
    if name in known:
        return known[name]
    called = [other for other in known if other.endswith(f"/{name}")]
    called = [other for other in called if other != f"{PAPERS}/{name}"] or called
    if len(called) == 1:
        return known[called[0]]
    if called:
        raise RecipeError(f"{name}: there are {len(called)} recipes of that name; write {' or '.join(called)}")
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise RecipeError(
        f"{name}: no such recipe; {hint}`specframe recipes` lists those that come with it"
        "; a model is a folder, a .gguf file, owner/name on the Hub or zoo://name"
    )


def cache_folder() -> Path:
    """The folder of files that can be computed or downloaded again: models, the native library, self-tests.

    It is SPECFRAME_CACHE, or `specframe` in the user's cache folder.
    """
    if moved := os.environ.get(CACHE):
        return Path(moved).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "specframe"
