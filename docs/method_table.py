"""The methods page: the components and the recipe of each method, lossless or not, and the bench's figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benches import ELSEWHERE, FOLDER, Bench, Found, newest, read_benches, read_rows
from catalogue import Method, find_recipe, identity, model_name, planned, read_table
from overview import render_overview

from specframe.kernel.composition import will_approximate
from specframe.recipes.discovery import discover
from specframe.recipes.registry import Registry
from specframe_report.format import format_figure, format_quality, is_suspect

BENCH = "specframe bench suites/small --out docs/benchmark"
WIDE = "---\nhide: [toc]\n---\n"
"""The widest table needs the place of the table of contents."""
NOTE = "<!-- Written by docs/generate.py from docs/methods.yaml, the registry and the results in docs/benchmark. -->\n"
HEAD = "| method | here | recipe | the target's law | measured |\n|---|---|---|---|---|"


def render_methods(folder: Path = FOLDER) -> str:
    """The page, with the figures of the benches in a folder.

    Raises PluginError for a component that is not registered.
    """
    registry, benches = discover(), read_benches(folder)
    rows = read_rows(folder)
    measured = newest(benches, rows)
    tables, columns = render_overview(measured)
    parts = [WIDE, "# Methods\n", NOTE, tables, columns, "## How it is made\n", *_render_opening(benches, rows)]
    for group in read_table()["groups"]:
        lines = [_render_row(method, registry, measured) for method in group["methods"]]
        parts.append(f"## {group['title']}\n\n{group['about']}\n\n" + "\n".join([HEAD, *lines]) + "\n")
    return "\n".join(parts)


def _render_opening(benches: Sequence[Bench], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "A method is a choice of parts. The tables below list for each method which components it is made of here, "
        "which recipe puts them together, and what of it is **not here**. Components of a method that its recipe does "
        "without, and which had no part in its figures, are listed as **not in this recipe**. `specframe run` "
        "decodes with a recipe of the "
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
    yield (
        "*Measured* is [tau](../reference/metrics.md#tau) and the [speedup](../reference/metrics.md#bench-speedup) "
        "against `generate` with its 95 % interval, and the model on which, by the newest bench that a recipe takes "
        "part in:\n"
    )
    for bench in benches:
        page = f"../benchmark/{bench.name}/report.md".replace("//", "/")
        yield f"* [{bench.title}]({page}): {bench.machine}, {bench.made[:10]}"
    yield "\n" + _render_commands("\n".join(bench.command for bench in benches))
    yield "The reports have every figure, the settings and the versions.\n"
    if rows:
        days = sorted({row["made"] for row in rows})
        prompts = sorted({row["overall"]["prompts"] for row in rows})
        yield (
            f"Recipes that took part in none of them have tau alone, with its interval over {prompts[0]} to "
            f"{prompts[-1]} prompts, of `specframe bench suites/everything --repeats 1` on {' and '.join(days)}; "
            "`python docs/benches.py runs/everything` keeps it.\n"
        )


def _render_commands(bench: str) -> str:
    return f"```bash\n{bench}\npython docs/generate.py   # writes this page\n```\n"


def _render_row(method: Method, registry: Registry, measured: Mapping[tuple[str, str], Found]) -> str:
    name = f"[{method['name']}]({method['page']})" if "page" in method else method["name"]
    recipe = method.get("recipe")
    shipped = recipe and find_recipe(recipe)
    cells = [
        f"**{name}**<br>{method['paper']}",
        _render_parts(method, registry),
        f"`{shipped}`" if shipped else "",
        _render_law(method, registry, shipped),
        _render_measured(shipped, measured.get(identity(shipped))) if shipped else "",
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _render_parts(method: Method, registry: Registry) -> str:
    here, absent = _render_links(method.get("parts", ()), registry), method.get("absent")
    if "also" in method:
        here += f"; **not in this recipe**: {_render_links(method['also'], registry)}"
    if not absent:
        return here
    return f"{here}; **not here**: {absent}" if here else f"**not here**: {absent}"


def _render_links(parts: Sequence[str], registry: Registry) -> str:
    links = []
    for part in parts:
        kind, _, name = part.partition("/")
        registry.find(kind, name)
        links.append(f"[`{name}`](../reference/components.md#{kind}-{name})")
    return ", ".join(links)


def _render_law(method: Method, registry: Registry, recipe: str | None) -> str:
    if not method.get("parts"):
        return ""
    verifiers = [name for kind, _, name in (part.partition("/") for part in method["parts"]) if kind == "verifier"]
    if recipe is not None:
        parts = planned(recipe).parts
        promises = {parts["verifier"].component.lossless and not will_approximate(parts["target"])}
    else:
        promises = {registry.find("verifier", name).load().lossless for name in verifiers}
    if not promises:
        return "its verifier's"
    return "lossless" if all(promises) else "**lossy**"


def _render_measured(recipe: str, found: Found | None) -> str:
    figures = found and found.entry["overall"]
    if not found or not figures or not figures.get("tau"):
        return next((words for folder, words in ELSEWHERE.items() if recipe.startswith(folder)), "not measured yet")
    tau, model = format_figure({**figures["tau"], "low": None}), model_name(found.entry["target"])
    if "temperature" in found.entry:  # of a single row, which was not timed
        at = f" at temperature {found.entry['temperature']:g}" if found.entry["temperature"] else ""
        quality = f"; quality {format_quality(found.entry)}" if figures["quality"] else ""
        return f"tau {format_figure(figures['tau'])} on {model}{at}{quality}"
    mark = " (differs: see the report)" if is_suspect(found.entry) else ""
    return f"tau {tau}, {format_figure(figures.get('speedup_hf'), unit='x')} on {model}{mark}"
