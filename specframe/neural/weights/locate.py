"""The location of a model or checkpoint: `zoo://NAME`, a folder, a GGUF file or a Hub name; and its files' tensors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from os.path import expanduser
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from specframe.kernel.errors import WeightsError, first_line
from specframe.recipes.zoo import model_folder

GGUF = ".gguf"
SUFFIX = ".safetensors"
WEIGHTS = f"model{SUFFIX}"
INDEX = f"{WEIGHTS}.index.json"
PART = re.compile(rf"model-(\d+)-of-(\d+){re.escape(SUFFIX)}")
"""Matches the name of a part of the weights: the part's number, and the number of parts."""


def find_place(name: str | Path) -> Path | str | None:
    """The folder or GGUF file that a name refers to, otherwise the Hub name that it may be; None if it is neither.

    `model.safetensors`, or a part of it, refers to its folder. A model of the zoo is downloaded if necessary. Raises
    PluginError for a zoo name that no plugin has, FetchError for a model that cannot be downloaded.
    """
    text = str(name)
    if text.startswith("zoo:/"):  # Path() swallows one of the two slashes
        return model_folder(text.removeprefix("zoo:").strip("/"))
    path = Path(expanduser(text))
    if text and (path.is_dir() or (path.suffix == GGUF and path.is_file())):
        return path
    if (path.name == WEIGHTS or PART.fullmatch(path.name)) and path.is_file():
        return path.parent
    is_path = isinstance(name, Path) or text.startswith((".", "/", "~")) or path.suffix == GGUF or path.is_file()
    if is_path or not text or "\\" in text or text.count("/") > 1:
        return None
    return text


def check_shards(place: Path | str, named: str | None = None, revision: str | None = None) -> None:
    """Raises WeightsError if an index names anything but safetensors files in its own folder.

    transformers would unpickle other files, and follow paths out of the folder. `place` is a folder or a Hub name,
    `named` the file that the model's config names, if any (`transformers_weights`).
    """
    names = {INDEX} if named is None else {named}
    for name in names:
        if not _is_bare(name, SUFFIX) and not _is_bare(name, ".index.json"):
            raise WeightsError(f"the config of {place} names {name!r} for its weights: no safetensors file there")
        path = _find(place, name, revision) if name.endswith(".json") else None
        if path is not None:
            parts = sorted({*_read_index(path).values()})
            if isinstance(place, Path):
                _require_parts(place, parts)


def _read_index(path: Path) -> dict[str, str]:
    """The file of every tensor, by its name. Raises WeightsError unless all are safetensors files of this folder."""
    try:
        index: Any = json.loads(path.read_text(encoding="utf-8"))
        places: dict[str, str] = dict(index["weight_map"])
        files = set(places.values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{path} is no index of weights: {type(error).__name__}") from error
    for file in files:
        if not isinstance(file, str) or not _is_bare(file, SUFFIX):
            raise WeightsError(f"{path} names {str(file)[:200]!r}: weights are safetensors files in its folder only")
    return places


def weight_files(folder: Path, file: str = WEIGHTS, wanted: Callable[[str], bool] | None = None) -> list[Path]:
    """The weights' file in a folder, or its parts: those of an index, otherwise those named as parts; may be empty.

    `wanted` selects tensors by name: parts of an index without any of them are left out. Raises WeightsError for a
    missing part, and for an invalid index.
    """
    if (folder / file).is_file():
        return [folder / file]
    if (index := folder / f"{file}.index.json").is_file():
        places = _read_index(index)
        return _require_parts(
            folder, sorted({*places.values()}), {places[name] for name in places if wanted is None or wanted(name)}
        )
    numbers = [(int(found[1]), found[2]) for path in folder.glob(f"*{SUFFIX}") if (found := PART.fullmatch(path.name))]
    if not numbers or file != WEIGHTS:
        return []
    count = max(numbers)[1]
    return _require_parts(folder, [f"model-{number:05}-of-{count}{SUFFIX}" for number in range(1, int(count) + 1)])


def is_unlisted(folder: Path) -> bool:
    """Returns whether a folder holds parts of the weights without the index that lists them."""
    return not (folder / INDEX).exists() and folder / WEIGHTS not in (files := weight_files(folder)) and bool(files)


def _require_parts(folder: Path, names: list[str], wanted: Collection[str] | None = None) -> list[Path]:
    """The paths of the wanted parts. Raises WeightsError for a missing one."""
    chosen = [(number, folder / name) for number, name in enumerate(names, 1) if wanted is None or name in wanted]
    for number, path in chosen:
        if not path.is_file():
            raise WeightsError(f"part {number} of {len(names)}: {path} is absent; all parts lie in one folder")
    return [path for _, path in chosen]


class FileTensors(Mapping[str, Tensor]):
    """The tensors of a folder's weights, in one file or in parts, found by `weight_files` and read on demand.

    Raises WeightsError if there is no file, or one cannot be read.
    """

    def __init__(self, folder: Path, file: str = WEIGHTS, wanted: Callable[[str], bool] | None = None) -> None:
        self._places: dict[str, tuple[Path, Any]] = {}
        for path in weight_files(folder, file, wanted) or [folder / file]:
            with _reading(path):
                opened = safe_open(path, framework="pt")
                self._places |= dict.fromkeys(opened.keys(), (path, opened))

    def __getitem__(self, name: str) -> Tensor:
        path, opened = self._places[name]
        with _reading(path):
            found: Tensor = opened.get_tensor(name)
            return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def shape(self, name: str) -> list[int]:
        """The shape of a tensor, without reading it."""
        path, opened = self._places[name]
        with _reading(path):
            return list(opened.get_slice(name).get_shape())


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        own = error.strerror if isinstance(error, OSError) else None
        raise WeightsError(f"cannot read {path}: {own or first_line(error)}") from error


def _is_bare(name: str, suffix: str) -> bool:
    return name.endswith(suffix) and not any(c in name for c in "/\\\0") and not name.startswith(".")


def _find(place: Path | str, name: str, revision: str | None) -> Path | None:
    """The file on this machine, downloaded from the Hub if necessary, or None."""
    if isinstance(place, Path):
        return place / name if (place / name).is_file() else None
    from transformers.utils import cached_file

    try:
        found = cached_file(place, name, revision=revision or "main", _raise_exceptions_for_missing_entries=False)
    except (OSError, ValueError):  # then loading fails, too, and reports the reason
        return None
    return None if found is None else Path(found)
