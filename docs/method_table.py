"""The methods page: which components and recipe a method is, lossless or not, and what the bench measured."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from specframe.bench.figures.summary import summarise
from specframe.bench.report.phrases import format_figure, is_suspect
from specframe.kernel.build import plan
from specframe.kernel.plugins.discovery import discover
from specframe.kernel.plugins.registry import Registry
from specframe.kernel.recipes.recipe import Recipe

DOCS = Path(__file__).resolve().parent
RECIPES = DOCS.parent / "recipes"
RESULTS = DOCS / "benchmark" / "results.json"
PUBLISHED = DOCS / "benchmark" / "smollm2" / "results.json"
"""The bench's results on the small embedded model, and on the published one."""
BENCH = "specframe bench recipes/small/*.yaml recipes/small/*/*.yaml --limit 12 --out docs/benchmark"
NOTE = "<!-- Written by docs/generate.py from docs/methods.yaml, the registry and the results in docs/benchmark. -->\n"
HEAD = "| method | here | recipe | the target's law | measured |\n|---|---|---|---|---|"
OVERVIEW = (
    "| method | recipe | drafter | tree | training | tau | speed | promise |\n|---|---|---|---|---|---:|---:|---|"
)

Method = Mapping[str, Any]


@cache
def read_table() -> Mapping[str, Any]:
    """The hand-written table: `groups` of methods, and the `own` components that are no paper's."""
    table: Mapping[str, Any] = yaml.safe_load((DOCS / "methods.yaml").read_text(encoding="utf-8"))
    return table


def render_methods(published: Path = PUBLISHED, small: Path = RESULTS) -> str:
    """The page. Raises PluginError for a component that is not registered."""
    registry, benches = discover(), [found for path in (published, small) if (found := read_results(path))]
    measured = {name: entry for data in reversed(benches) for name, entry in _read_by_target(data).items()}
    parts = ["# Methods\n", NOTE, *_render_opening(benches)]
    parts.append(_render_overview(registry, measured))
    for group in read_table()["groups"]:
        rows = [_render_row(method, registry, measured) for method in group["methods"]]
        parts.append(f"## {group['title']}\n\n{group['about']}\n\n" + "\n".join([HEAD, *rows]) + "\n")
    return "\n".join(parts)


def _render_overview(registry: Registry, measured: Mapping[tuple[str, str], Any]) -> str:
    """The methods with a recipe in one table, which the page's script sorts by the column that is clicked."""
    rows: dict[str, str] = {}
    for method in (each for group in read_table()["groups"] for each in group["methods"]):
        recipe = find_recipe(method.get("recipe", ""))
        if recipe is None or recipe in rows:
            continue
        parts = plan(Recipe.read(RECIPES / recipe), registry).parts
        tree, drafter = parts.get("tree"), parts["drafter"]
        figures = measured.get(_identity(recipe), {}).get("overall") or {}
        cells = [
            f"[{method['name']}]({method['page']})" if "page" in method else method["name"],
            f"`{recipe}`",
            f"`{drafter.entry.name}`",
            f"`{tree.entry.name}`" if tree else "its own",
            "a drafter" if "weights" in drafter.options else "none",
            *(f"{figures[name]['value']:.2f}" if figures.get(name) else "" for name in ("tau", "speedup_hf")),
            "lossless" if parts["verifier"].component.lossless else "lossy",
        ]
        rows[recipe] = "| " + " | ".join(cells) + " |"
    about = (
        "What has a recipe. A click on a column's name sorts by it. tau and the speed, in multiples of `generate`'s, "
        "were measured on SmolLM2, those of recipes in `small/` on the embedded model, which flatters.\n"
    )
    return "\n".join(["## All recipes\n", about, OVERVIEW, *rows.values(), ""])


def find_recipe(name: str) -> str | None:
    """The file of a method's recipe below recipes/: for the published target or, where there is none, the small one."""
    return next(
        (
            file
            for file in (
                f"{name}.yaml",
                f"vocabularies/{name}.yaml",
                f"small/{name}.yaml",
                f"small/compositions/{name}.yaml",
                f"small/families/{name}.yaml",
                f"small/own-layers/{name}.yaml",
            )
            if (RECIPES / file).is_file()
        ),
        None,
    )


def read_measured(results: Mapping[str, Any] | None) -> dict[str, Any]:
    """The bench's entry of each recipe, by its name, and that of `plain`; empty before there are results."""
    entries = summarise(results)["contestants"] if results else []
    recipes = {Path(e["recipe"]).stem: e for e in entries if e["kind"] == "recipe" and e["recipe"]}
    return recipes | {e["name"]: e for e in entries if e["kind"] == "plain"}


def _read_by_target(results: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """The bench's entries by the recipe's name and target."""
    return {(name, entry["target"]): entry for name, entry in read_measured(results).items()}


def _identity(recipe: str) -> tuple[str, str]:
    """The name and target of a recipe's file, by which benches have it."""
    return Path(recipe).stem, Recipe.read(RECIPES / recipe).data["target"].get("model")


def read_results(path: Path = RESULTS) -> Mapping[str, Any] | None:
    """The bench's results; None before there are any."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _render_opening(benches: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "A method is a choice of parts. This page lists for each method which components it is made of here, which "
        "recipe puts them together, and what of it is **not here**. `specframe run` decodes with a recipe of the "
        "third column, and [`specframe certify`](../howto/certify.md) tests the promise of the fourth.\n"
    )
    yield (
        "*The target's law* is what the recipe's verifier promises, read from the component itself: **lossless** or "
        "**lossy**. What comes without a verifier leaves it to the one it is combined with; with "
        "[`match`](../reference/components.md#verifier-match) every draft is lossless.\n"
    )
    if not benches:
        yield f"*Measured*: tau and speedup will be those of\n\n{_render_commands(BENCH)}"
        yield "which has not been run yet.\n"
        return
    hardware = benches[0]["provenance"]["hardware"]
    machine = f"{hardware['accelerator'] or hardware['processor']}, {hardware['cores']} cores"
    commands = (each["provenance"]["command"] for each in benches)
    yield (
        "*Measured* is [tau](../reference/metrics.md#tau) and the [speedup](../reference/metrics.md#bench-speedup) "
        f"against `generate` with its 95 % interval, on {machine}, by\n\n"
        f"{_render_commands(chr(10).join(shlex.join([Path(c[0]).name, *c[1:]]) for c in commands))}\n"
        "The whole reports, [on SmolLM2](../benchmark/smollm2/report.md) and [on the embedded "
        "model](../benchmark/report.md), have every figure, the settings and the versions.\n"
    )


def _render_commands(bench: str) -> str:
    return f"```bash\n{bench}\npython docs/generate.py   # writes this page\n```\n"


def _render_row(method: Method, registry: Registry, measured: Mapping[tuple[str, str], Any]) -> str:
    name = f"[{method['name']}]({method['page']})" if "page" in method else method["name"]
    recipe = method.get("recipe")
    shipped = recipe and find_recipe(recipe)
    cells = [
        f"**{name}**<br>{method['paper']}",
        _render_parts(method, registry),
        f"`{shipped}`" if shipped else "",
        _render_law(method, registry, shipped),
        _render_measured(measured.get(_identity(shipped))) if shipped else "",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _render_parts(method: Method, registry: Registry) -> str:
    links = []
    for part in method.get("parts", ()):
        kind, _, name = part.partition("/")
        registry.find(kind, name)
        links.append(f"[`{name}`](../reference/components.md#{kind}-{name})")
    here, absent = ", ".join(links), method.get("absent")
    if not absent:
        return here
    return f"{here}; **not here**: {absent}" if here else f"**not here**: {absent}"


def _render_law(method: Method, registry: Registry, recipe: str | None) -> str:
    if not method.get("parts"):
        return ""
    verifiers = [name for kind, _, name in (part.partition("/") for part in method["parts"]) if kind == "verifier"]
    if recipe is not None:
        promises = {plan(Recipe.read(RECIPES / recipe), registry).parts["verifier"].component.lossless}
    else:
        promises = {registry.find("verifier", name).load().lossless for name in verifiers}
    if not promises:
        return "its verifier's"
    return "lossless" if all(promises) else "**lossy**"


def _render_measured(entry: Mapping[str, Any] | None) -> str:
    figures = entry and entry["overall"]
    if not entry or not figures or not figures.get("tau"):
        return "not measured yet"
    mark = " (differs: see the report)" if is_suspect(entry) else ""
    tau, speedup = format_figure({**figures["tau"], "low": None}), format_figure(figures.get("speedup_hf"), unit="x")
    return f"tau {tau}, {speedup}{mark}"
