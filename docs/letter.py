"""The papers' values of the settings of recipes/papers (docs/papers.yaml), next to the recipes' own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml
from catalogue import DOCS, planned

HEAD = "| setting | the paper | where | here |\n|---|---|---|---|"


@dataclass(frozen=True)
class Setting:
    """A setting of a recipe: its paper's value, and the value here."""

    name: str
    paper: Any
    """None where the paper gives no value."""
    place: str
    why: str
    """The reason for another value than the paper's; empty where it is the same."""
    here: Any


@cache
def read_papers() -> Mapping[str, Mapping[str, Sequence[Any]]]:
    """The papers' values: for each recipe of recipes/papers, a value, its place and perhaps a reason by setting."""
    table: dict[str, Any] = yaml.safe_load((DOCS / "papers.yaml").read_text(encoding="utf-8"))
    return {name: {key: given for key, given in each.items() if given} for name, each in table["papers"].items()}


def settings(recipe: str) -> Iterator[Setting]:
    """Yields every setting of a recipe that has an entry. Raises KeyError for one that the recipe lacks."""
    for name, (paper, place, *why) in read_papers()[recipe].items():
        yield Setting(name, paper, place, "".join(why), value(recipe, name))


def value(recipe: str, name: str) -> Any:
    """A setting of a recipe of recipes/papers, or its default in the train section; a tree as its nodes per level."""
    made = planned(f"papers/{recipe}.yaml")
    section, *steps = name.split(".")
    if section == "train" and steps[0] not in made.recipe.data["train"]:
        found = vars(made.settings["train"])[steps[0]]
        return list(found) if isinstance(found, tuple) else found
    found = made.recipe.data[section]
    for step in steps:
        found = next(part for part in found if part["use"] == step) if isinstance(found, list) else found[step]
    return nodes_per_level(found) if name == "tree.paths" else found


def nodes_per_level(paths: Sequence[str]) -> list[int]:
    """The number of nodes on each level of a tree of such paths."""
    levels = Counter(path.count(".") for path in paths)
    return [levels[level] for level in sorted(levels)]


def stated(recipe: str) -> set[str]:
    """The settings that a recipe states of its method's parts, all of which need an entry."""
    data = planned(f"papers/{recipe}.yaml").recipe.data
    parts = {"drafter": data["drafter"], "tree": data.get("tree")}
    if data.get("train") and "weights" not in data["drafter"]:
        parts |= {f"loss.{part['use']}": part for part in data["loss"]}
        parts["train.rollout"] = data["train"]["rollout"]
    return {name for key, part in parts.items() for name in _options(key, part or {})}


def _options(name: str, part: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of a part's own options; weights, their precision and the draft vocabulary are no paper's."""
    for option, given in part.items():
        if option in ("use", "weights", "quantize", "fresh"):
            continue
        if not isinstance(given, dict):
            yield f"{name}.{option}"
        elif given.get("use") != "trimmed":
            yield from _options(f"{name}.{option}", given)


def setting_rows(recipe: str) -> list[str]:
    """The table of a recipe's settings, the reason next to every value that is not the paper's."""
    rows = []
    for setting in settings(recipe):
        here = show(setting.here) + (f": {setting.why}" if setting.why else "")
        paper = "not given" if setting.paper is None else show(setting.paper)
        rows.append(f"| `{setting.name}` | {paper} | {setting.place} | {here} |")
    return [HEAD, *rows]


def show(found: Any) -> str:
    """A value as tables have it."""
    if isinstance(found, list) and all(isinstance(each, int) for each in found):
        return f"{sum(found)} nodes on {len(found)} levels: {', '.join(map(str, found))}"
    if isinstance(found, list):
        return ", ".join(map(str, found))
    return str(found).lower() if isinstance(found, bool) else f"{found:g}" if isinstance(found, float) else str(found)
