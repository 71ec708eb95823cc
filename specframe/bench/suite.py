"""A suite: a file that names the contestants, prompt sets and settings of benches, in the words of the command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from specframe.bench.contest.contestants import Selection, is_recipe, plan_contestants
from specframe.bench.contest.datasets import SHIPPED, read_sets
from specframe.bench.contest.settings import ContestSettings, Variant
from specframe.files.provenance import named_weights
from specframe.kernel.errors import InputError, RecipeError
from specframe.neural.weights.locate import find_place
from specframe.recipes.build import Plan
from specframe.recipes.discovery import discover
from specframe.recipes.folders import SUITES, find_recipe, recipes_folder
from specframe.recipes.options import Mismatch, convert
from specframe.recipes.registry import suggest
from specframe.recipes.source import SUFFIXES, Key, Source, read_source

BENCHES, CONTESTANTS = "benches", "contestants"
NAME = re.compile(r"\w[\w.-]*")
"""Matches a bench's name: its results are in a folder of that name."""


@dataclass(frozen=True)
class SuiteBench:
    """One bench in the words of `specframe bench`: its contestants, and its options by their names."""

    contestants: tuple[str | Variant, ...]
    overrides: tuple[str, ...] = ()
    """`key=value`, for every recipe."""
    vary: tuple[str, ...] = ()
    data: tuple[str, ...] = (SHIPPED,)
    limit: int | None = None
    turns: int = 1
    repeats: int = 3
    pause: float = 0.0
    batch: int = 1
    seed: int = 0
    check: str | None = None
    run_code: bool = False
    bound: bool = False
    assistant: str | None = None
    max_new_tokens: int | None = None
    temperature: float | None = None
    """None: that of the recipes."""

    def selection(self, *, local_code: bool, environment: bool) -> Selection:
        """The contestants, with the values that replace those of their recipes."""
        sampling = {"temperature": self.temperature, "max_new_tokens": self.max_new_tokens}
        given = (f"sampling.{name}={value}" for name, value in sampling.items() if value is not None)
        changes = (*self.overrides, *given)
        return Selection(self.contestants, changes, self.assistant, local_code, self.vary, environment)

    def settings(self) -> ContestSettings:
        """The amount and order of the decoding."""
        return ContestSettings(**{each.name: getattr(self, each.name) for each in fields(ContestSettings)})


@dataclass(frozen=True)
class SuiteEntry:
    """A recipe with a name or overrides."""

    recipe: str
    label: str = ""
    overrides: tuple[str, ...] = ()
    """`key=value`, for this recipe alone."""
    sampled: tuple[str, ...] = ()
    """Further ones at a temperature above 0."""


def find_suite(word: str) -> Path | None:
    """The file of a suite: one that names contestants, or a shipped one by its name, `suites/NAME`."""
    home = recipes_folder()
    if home is not None and word.startswith(f"{SUITES}/") and (home / f"{word}.yaml").is_file():
        return home / f"{word}.yaml"
    path = Path(word).expanduser()
    if path.suffix not in SUFFIXES or not path.is_file():
        return None
    try:
        named = read_source(word).data.keys()
    except RecipeError:  # reported where it is read as a recipe
        return None
    return path if {BENCHES, CONTESTANTS} & named else None


def read_suite(path: Path, given: Mapping[str, Any], overrides: Sequence[str] = ()) -> dict[str, SuiteBench]:
    """The benches of a suite by name, an only one without; `given` options replace those of all, as `overrides` do.

    Raises InputError for a key, recipe or contestant that is wrong, with its line.
    """
    source = read_source(str(path))
    parts = source.data.pop(BENCHES, None)
    if parts is None:
        return {"": _read_bench(source, given, overrides)}
    if not isinstance(parts, dict) or not parts:
        raise InputError(f"{_origin(source, (BENCHES,))}: benches are a mapping of names to a bench each")
    found = {}
    for name, part in parts.items():
        if not NAME.fullmatch(str(name)) or not isinstance(part, dict):
            raise InputError(f"{_origin(source, (BENCHES, name))}: a bench has the name of a folder, and is a mapping")
        lines = {key[2:]: line for key, line in source.origins.items() if key[:2] == (BENCHES, name)}
        found[str(name)] = _read_bench(Source(source.path, part, lines).over(source), given, overrides)
    return found


def require_sound(benches: Mapping[str, SuiteBench], selections: Mapping[str, Selection]) -> None:
    """Raises InputError or RecipeError for the first bench that cannot be run, before a model loads.

    All its recipes must be valid and share a target, and their weights and its prompt sets be there.
    """
    for name, bench in benches.items():
        entrants = plan_contestants(selections[name], discover()).entrants
        absent = dict.fromkeys(path for entrant in entrants for path in _absent_weights(entrant.plan))
        if absent:
            raise InputError(f"{', '.join(absent)}: no such weights; train them first, or leave out their recipes")
        first, *others = entrants
        for other in others:
            if other.target != first.target:
                raise InputError(
                    f"{f'{name}: ' if name else ''}{first.name} decodes {first.label} and {other.name} {other.label}; "
                    "the contestants of a suite's bench share a target: give these a bench each"
                )
        read_sets(bench.data, bench.settings().check)


def _absent_weights(plan: Plan) -> Iterator[str]:
    """Yields the weights that a plan names and that do not exist."""
    yield from (weights for weights in named_weights(plan).values() if find_place(weights) is None)


def _read_bench(source: Source, given: Mapping[str, Any], overrides: Sequence[str]) -> SuiteBench:
    options = {name: value for name, value in source.data.items() if name != CONTESTANTS}
    entries = source.data.get(CONTESTANTS)
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{_origin(source, (CONTESTANTS,))}: contestants are a list of recipes and other contestants")
    values = {**_convert(source, (), SuiteBench, options), **given}
    values["overrides"] = (*values.get("overrides", ()), *overrides)
    sampled = (values.get("temperature") or 0) > 0
    contestants = []
    known: set[str] = set()
    for index, entry in enumerate(entries):
        contestant = _read_contestant(source, index, entry, sampled=sampled)
        for identity in _identities(contestant):
            if identity in known:
                raise InputError(f"{_origin(source, (CONTESTANTS, index))}: {identity} takes part twice")
            known.add(identity)
        contestants.append(contestant)
    return SuiteBench(tuple(contestants), **values)


def _read_contestant(source: Source, index: int, entry: object, *, sampled: bool) -> str | Variant:
    origin = _origin(source, (CONTESTANTS, index))
    if isinstance(entry, str):
        if is_recipe(entry, discover()):
            _require_recipe(origin, entry)
        return entry
    if not isinstance(entry, dict) or not isinstance(entry.get("recipe"), str):
        raise InputError(f"{origin}: a contestant is a word, or a mapping with a recipe")
    found = SuiteEntry(**_convert(source, (CONTESTANTS, index), SuiteEntry, entry))
    _require_recipe(origin, found.recipe)
    return Variant(found.recipe, (), (*found.overrides, *(found.sampled if sampled else ())), found.label)


def _require_recipe(origin: str, recipe: str) -> None:
    try:
        path = find_recipe(recipe)
    except RecipeError as error:
        raise InputError(f"{origin}: {error}") from error
    if not path.is_file():
        raise InputError(f"{origin}: {recipe}: no such recipe")


def _identities(contestant: str | Variant) -> Iterator[str]:
    """Yields what only one contestant may have: a label, and a recipe with its values."""
    if isinstance(contestant, str) and not is_recipe(contestant, discover()):
        yield contestant
        return
    variant = Variant(contestant) if isinstance(contestant, str) else contestant
    yield " ".join([str(find_recipe(variant.recipe).resolve()), *variant.overrides])
    if variant.name:
        yield f"the label {variant.name}"


def _convert(source: Source, key: Key, kind: type[SuiteBench | SuiteEntry], data: Mapping[str, Any]) -> dict[str, Any]:
    """The values by the fields of a dataclass. Raises InputError for an unknown name or a value of another type."""
    hints = get_type_hints(kind)
    for name in data:
        if name not in hints:
            near = suggest(str(name), hints)
            known = ", ".join(hints)
            raise InputError(f"{_origin(source, (*key, name))}: there is no '{name}'{near} (known: {known})")
    try:
        return {name: convert(value, hints[name]) for name, value in data.items()}
    except Mismatch as error:
        raise InputError(f"{_origin(source, key)}: {error}") from error


def _origin(source: Source, key: Sequence[str | int]) -> str:
    """The place of a value or of the section around it: "file:line"."""
    for end in range(len(key), 0, -1):
        if tuple(key[:end]) in source.origins:
            return source.origins[tuple(key[:end])]
    return str(source.path)
