"""Table of all recipes: parts, training cost, measured figures and certificates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benches import Found
from catalogue import DOCS, identity, model_name, planned, recipes_shown

from specframe.files.provenance import named_weights
from specframe.recipes.build import Part, Plan
from specframe.recipes.zoo import model_folder

CERTIFICATES = DOCS / "certificates.json"
"""Output of docs/certificates.py."""
HEAD = "| method | tau | speed | recipe | drafter | tree | training | certified |\n|---|---:|---:|---|---|---|---:|---|"
SPEED = HEAD.split(" | ").index("speed")
"""The column of the measured speed."""
GROUPS = ("no training", "trained", "lossy")
"""The parts of a table, one after another: what a method needs, and those that change the distribution."""
INTRODUCTION = """Every method that has a recipe, grouped by target and by what the method needs: no training, or a trained drafter or second model. Lossy methods come last.
In each table the fastest come first, and those whose speed was not measured last. Decode with `specframe run RECIPE`. Click on a column's name to sort by it. [The columns](#the-columns) are explained below.
"""  # noqa: E501 - a page's lines
ABOUT = """## The columns

* **tau**: tokens per forward pass of the target. **speed**: times `generate`'s. The embedded model repeats itself, so its figures are too
  optimistic for other models.{mark}
* **training**: the cost of the drafter's last training, in millions of [token-passes](../glossary.md). `plugins/specframe-zoo/README.md` describes
  earlier trainings. *none*: no training is needed. *a model*: another language model drafts.
* **certified**: [`specframe certify RECIPE --exact-only`](../howto/certify.md) ran this many branches (random outcomes), and their output has exactly
  the target's distribution. `python docs/certificates.py` runs it for every recipe.
"""  # noqa: E501 - a page's lines
UNTRAINED, LOSSY = "none", "lossy"
"""Words of the columns training and certified."""
MARK = " †: from an earlier bench than the others of that target."


def read_certificates() -> dict[str, Any]:
    """The certificate of each recipe, by its file."""
    found: dict[str, Any] = json.loads(CERTIFICATES.read_text(encoding="utf-8")) if CERTIFICATES.is_file() else {}
    return found


def render_overview(measured: Mapping[tuple[str, str], Found]) -> tuple[str, str]:
    """The tables, which the page's script sorts by the column that is clicked, and what their columns are."""
    certificates = read_certificates()
    rows: dict[str, dict[str, list[list[str]]]] = {}
    for recipe, method in recipes_shown().items():
        made = planned(recipe)
        tree, drafter = made.parts.get("tree"), made.parts["drafter"]
        needed, certified = training(made), _certified(certificates.get(recipe))
        group = GROUPS[2 if certified == LOSSY else int(needed != UNTRAINED)]
        cells = [
            f"[{method['name']}]({method['page']})" if "page" in method else method["name"],
            *_measured(measured.get(identity(recipe))),
            f"`{recipe}`",
            f"`{drafter.entry.name}`",
            f"`{tree.entry.name}`" if tree else "its own",
            needed,
            certified,
        ]
        groups = rows.setdefault(model_name(identity(recipe)[1]), {})
        groups.setdefault(group, []).append(cells)
    tables = ["## All recipes\n", INTRODUCTION]
    for target, groups in rows.items():
        tables.append(f"### On {target}\n")
        for group in filter(groups.get, GROUPS):
            lines = ["| " + " | ".join(cells) + " |" for cells in sorted(groups[group], key=_slowness)]
            tables += [f"*{group.capitalize()}*\n", HEAD, *lines, ""]
    mark = MARK if any("†" in line for line in tables) else ""
    return "\n".join(tables), ABOUT.format(mark=mark)


def _slowness(cells: Sequence[str]) -> float:
    """Sorts the fastest recipe first, and those without a measured speed last, in the order of the methods' table."""
    return -float(cells[SPEED].split()[0]) if cells[SPEED] else 0.0


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
