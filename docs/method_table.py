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
HEAD = "| method | components | recipe | output | measured |\n|---|---|---|---|---|"


def render_methods(folder: Path = FOLDER) -> str:
    """The page, with the figures of the benches in a folder.

    Raises PluginError for a component that is not registered.
    """
    registry, benches = discover(), read_benches(folder)
    rows = read_rows(folder)
    measured = newest(benches, rows)
    tables, columns = render_overview(measured)
    parts = [WIDE, "# Methods\n", NOTE, tables, columns, "## About the tables below\n", *_render_opening(benches, rows)]
    for group in read_table()["groups"]:
        lines = [_render_row(method, registry, measured) for method in group["methods"]]
        parts.append(f"## {group['title']}\n\n{group['about']}\n\n" + "\n".join([HEAD, *lines]) + "\n")
    return "\n".join(parts)


def _render_opening(benches: Sequence[Bench], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield (
        "The tables below list every method with its paper, its components here and a recipe. **Not here** marks what "
        "specframe does not implement of the paper. **Not in this recipe** lists components of the method that its "
        "recipe does not use, so they had no part in its figures.\n"
    )
    yield (
        "*Output* is **lossless** if the recipe's verifier keeps the target's distribution, which "
        "[`specframe certify`](../howto/certify.md) tests, and **lossy** otherwise. A method without a verifier is as "
        "lossless as the one it is combined with; with [`match`](../reference/components.md#verifier-match) every "
        "draft is lossless.\n"
    )
    if not benches:
        yield "*Measured*: tau and speedup come from this bench, which has not been run yet:\n"
        yield _render_commands(BENCH)
        return
    yield (
        "*Measured* is [tau](../reference/metrics.md#tau), the [speedup](../reference/metrics.md#bench-speedup) "
        "against `generate` with its 95 % interval, and the model, from the newest bench of the recipe:\n"
    )
    for bench in benches:
        page = f"../benchmark/{bench.name}/report.md".replace("//", "/")
        yield f"* [{bench.title}]({page}): {bench.machine}, {bench.made[:10]}"
    yield "\n" + _render_commands("\n".join(bench.command for bench in benches))
    yield "The reports have all figures, settings and versions.\n"
    if rows:
        days = sorted({row["made"] for row in rows})
        prompts = sorted({row["overall"]["prompts"] for row in rows})
        yield (
            f"The other recipes have only tau, with its interval over {prompts[0]} to {prompts[-1]} prompts, from "
            f"`specframe bench suites/everything --repeats 1` on {' and '.join(days)}. "
            "`python docs/benches.py runs/everything` records these figures.\n"
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
