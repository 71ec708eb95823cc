"""The place of a model or checkpoint: `zoo://NAME`, a folder, a GGUF file or a Hub name; and large ones' files."""

from __future__ import annotations

import json
from os.path import expanduser
from pathlib import Path
from typing import Any

from specframe.kernel.errors import WeightsError
from specframe.recipes.zoo import model_folder

GGUF = ".gguf"


def find_place(name: str | Path) -> Path | str | None:
    """The folder or GGUF file that a name stands for, else the Hub name that it must be; None where it can be neither.

    A model of the zoo is fetched if need be. Raises PluginError for a zoo name that no plugin has, FetchError for a
    model that cannot be fetched.
    """
    text = str(name)
    if text.startswith("zoo:/"):  # Path() swallows one of the two slashes
        return model_folder(text.removeprefix("zoo:").strip("/"))
    path = Path(expanduser(text))
    if text and (path.is_dir() or (path.suffix == GGUF and path.is_file())):
        return path
    is_path = isinstance(name, Path) or text.startswith((".", "/", "~")) or path.suffix == GGUF or path.is_file()
    if is_path or not text or "\\" in text or text.count("/") > 1:
        return None
    return text


SUFFIX = ".safetensors"
INDEX = "model.safetensors.index.json"


def check_shards(place: Path | str, named: str | None = None, revision: str | None = None) -> None:
    """Raises WeightsError where an index leads to anything but safetensors files in its own folder.

    transformers would unpickle other files, and follow paths out of the folder. `place` is a folder or a Hub name,
    `named` the file that the model's config names, if it does (`transformers_weights`).
    """
    names = {INDEX} if named is None else {named}
    for name in names:
        if not _is_bare(name, SUFFIX) and not _is_bare(name, ".index.json"):
            raise WeightsError(f"the config of {place} names {name!r} for its weights: no safetensors file there")
        path = _find(place, name, revision) if name.endswith(".json") else None
        if path is not None:
            _check_index(path)


def _check_index(path: Path) -> None:
    try:
        index: Any = json.loads(path.read_text(encoding="utf-8"))
        files = set(index["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{path} is no index of weights: {type(error).__name__}") from error
    for file in files:
        if not isinstance(file, str) or not _is_bare(file, SUFFIX):
            raise WeightsError(f"{path} names {str(file)[:200]!r}: weights are safetensors files in its folder only")


def _is_bare(name: str, suffix: str) -> bool:
    return name.endswith(suffix) and not any(c in name for c in "/\\\0") and not name.startswith(".")


def _find(place: Path | str, name: str, revision: str | None) -> Path | None:
    """The file on this machine, fetched from the Hub if need be; None where there is none."""
    if isinstance(place, Path):
        return place / name if (place / name).is_file() else None
    from transformers.utils import cached_file

    try:
        found = cached_file(place, name, revision=revision or "main", _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):  # without the file, or the Hub, loading fails as well, with the reason
        return None
    return None if found is None else Path(found)
