"""Table of all recipes: parts, training cost, measured figures and certificates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benches import Found
from catalogue import DOCS, identity, model_name, planned, recipes_shown

from specframe.files.provenance import named_weights
from specframe.recipes.build import Part, Plan
from specframe.recipes.zoo import model_folder

CERTIFICATES = DOCS / "certificates.json"
"""Output of docs/certificates.py."""
HEAD = "| method | recipe | drafter | tree | training | tau | speed | certified |\n|---|---|---|---|---:|---:|---:|---|"
GROUPS = ("no training", "trained", "lossy")
"""The parts of a table, one after another: what a method needs, and those that change the distribution."""
INTRODUCTION = """What has a recipe, by the target that it decodes, and by what it needs: no training, a trained drafter or another model; lossy rules come last.
A click on a column's name sorts by it; [the columns](#the-columns) are explained below.
"""  # noqa: E501 - a page's lines
ABOUT = """## The columns

* **training**: million [token-passes](../glossary.md) of the drafter's last training, from the train.json next to its weights;
  what came before it is on the drafter cards of `plugins/specframe-zoo/README.md`. *none*: nothing is trained; *a model*: another
  language model drafts.
* **tau** and **speed**, in multiples of `generate`'s, on the table's target; the embedded one repeats itself, which flatters.{mark}
* **certified**: how many branches of randomness [`specframe certify RECIPE --exact-only`](../howto/certify.md) ran to their ends;
  together they emit exactly the target's distribution. `python docs/certificates.py` runs it for every recipe.
"""  # noqa: E501 - a page's lines
UNTRAINED, LOSSY = "none", "lossy"
"""Words of the columns training and certified."""
MARK = " †: of an earlier bench than the others of that target."


def read_certificates() -> dict[str, Any]:
    """The certificate of each recipe, by its file."""
    found: dict[str, Any] = json.loads(CERTIFICATES.read_text(encoding="utf-8")) if CERTIFICATES.is_file() else {}
    return found


def render_overview(measured: Mapping[tuple[str, str], Found]) -> tuple[str, str]:
    """The tables, which the page's script sorts by the column that is clicked, and what their columns are."""
    certificates = read_certificates()
    rows: dict[str, dict[str, list[str]]] = {}
    for recipe, method in recipes_shown().items():
        made = planned(recipe)
        tree, drafter = made.parts.get("tree"), made.parts["drafter"]
        needed, certified = training(made), _certified(certificates.get(recipe))
        group = GROUPS[2 if certified == LOSSY else int(needed != UNTRAINED)]
        cells = [
            f"[{method['name']}]({method['page']})" if "page" in method else method["name"],
            f"`{recipe}`",
            f"`{drafter.entry.name}`",
            f"`{tree.entry.name}`" if tree else "its own",
            needed,
            *_measured(measured.get(identity(recipe))),
            certified,
        ]
        groups = rows.setdefault(model_name(identity(recipe)[1]), {})
        groups.setdefault(group, []).append("| " + " | ".join(cells) + " |")
    tables = ["## All recipes\n", INTRODUCTION]
    for target, groups in rows.items():
        tables.append(f"### On {target}\n")
        for group in filter(groups.get, GROUPS):
            tables += [f"*{group.capitalize()}*\n", HEAD, *groups[group], ""]
    mark = MARK if any("†" in line for line in tables) else ""
    return "\n".join(tables), ABOUT.format(mark=mark)


def training(made: Plan) -> str:
    """Million token-passes that a plan's drafter was trained for, or the substitute for training."""
    passes = sum(token_passes(model_folder(weights)) for weights in named_weights(made).values())
    if passes:
        return f"{passes / 1e6:.1f}"
    return "a model" if any("model" in part.options for part in _within(made.parts["drafter"])) else UNTRAINED


def token_passes(folder: Path) -> int:
    """Tokens that a drafter saw in its last training, each as often as its rollout unrolls it; 0 without a record."""
    path = folder / "train.json"
    if not path.is_file():
        return 0
    record = json.loads(path.read_text(encoding="utf-8"))
    rollout = record["rollout"]
    levels = rollout.get("steps") or rollout.get("rollout", {}).get("steps") or 1
    return int(record["tokens"]) * int(levels)


def _within(part: Part) -> Iterator[Part]:
    """Yields the part and its nested parts."""
    yield part
    for value in part.options.values():
        if isinstance(value, Part):
            yield from _within(value)


def _measured(found: Found | None) -> tuple[str, str]:
    figures = found and found.entry["overall"]
    if not found or not figures or not figures.get("tau"):
        return "", ""
    mark = "" if found.newest else " †"
    tau, speed = (f"{figures[name]['value']:.2f}{mark}" if figures.get(name) else "" for name in ("tau", "speedup_hf"))
    return tau, speed


def _certified(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    if not found["promised"]:
        return LOSSY
    changed = "".join(f", with `{change}`" for change in found.get("changes", ()))
    return f"exact, {found['branches']:,} branches{changed}" if found["lossless"] else "**not shown**"
