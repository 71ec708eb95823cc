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
"""The folder of files that several recipes share and that are no recipes themselves."""
SUITES = "suites"
"""The folder of benches, which are no recipes."""
PAPERS = "papers"
"""Folder of the recipes to the letter of their papers, which a name means where no other recipe has it."""
CACHE = "SPECFRAME_CACHE"
"""Environment variable: another folder for it."""


def recipes_folder() -> Path | None:
    """The folder of the recipes that come with specframe: a checkout's, or where a wheel puts them."""
    checkout = Path(__file__).parents[2] / "recipes"
    places = (checkout, Path(sysconfig.get_path("data")) / "share" / "specframe" / "recipes")
    return next((place for place in places if (place / f"{PARTS}/common{SUFFIX}").is_file()), None)


def shipped_recipes() -> Iterator[tuple[str, Path]]:
    """Yields every recipe that comes with specframe, by name, the published target's first."""
    folder = recipes_folder()
    files = [path.relative_to(folder) for path in folder.rglob(f"*{SUFFIX}")] if folder is not None else []
    for file in sorted(files, key=lambda file: (len(file.parts), file)):
        if folder is not None and file.parts[0] not in (PARTS, SUITES):
            yield file.with_suffix("").as_posix(), folder / file


def find_recipe(name: str) -> Path:
    """The file that a path or a name means, such as `small/coral` or, where no other recipe ends in it, `coral`.

    An existing file comes first. Raises RecipeError for a name that is unknown, or that of several recipes.
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
    """The folder of files that can be computed or fetched again: models, the native library, self-tests.

    It is SPECFRAME_CACHE, or the user's cache folder.
    """
    if moved := os.environ.get(CACHE):
        return Path(moved).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "specframe"
