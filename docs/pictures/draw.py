"""Draws the pages' pictures from real runs: ``python docs/pictures/draw.py [NAME ...]`` writes docs/pictures/NAME.svg.

``tree-METHOD`` is one cycle as `specframe show METHOD --html` draws it, and ``cycles`` five, one after another.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from animation import animate

from specframe.decoding.pipeline import Pipeline
from specframe.inspect.recorder import TracedCycle
from specframe.inspect.trace import trace
from specframe.native.build import load_native
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe_report.trace_drawing import draw_tree

FOLDER = Path(__file__).parent
QUESTION = "What do you like to do on a rainy day?"
TREES = {
    "falcon": ("falcon", []),
    "eagle": ("eagle", []),
    "eagle3": ("eagle3", ["tree.nodes=10"]),
    "suffix-recycling": ("suffix-recycling", []),
    "self": ("lookup", ["drafter={use: self, skip: [3, 4, 5]}", "tree={use: dynamic, depth: 3, width: 3, nodes: 8}"]),
    "tli": ("vocabularies/tli", ["tree={use: dynamic, depth: 3, width: 3, nodes: 8}"]),
    "model": (
        "small/lookup",
        [
            "drafter={use: model, model: 'zoo://talk-7m', layers: [0, 1, 2, 4, 5, 6, 7, 9, 10, 12, 13]}",
            "tree={use: dynamic, depth: 4, width: 4, nodes: 10}",
        ],
    ),
    "chimera": ("small/chimera", ["tree.nodes=10"]),
    "coral": ("small/coral", ["tree.nodes=10"]),
    "fspad": ("small/fspad", ["tree.nodes=10"]),
    "dflash": ("small/families/dflash", ["tree.nodes=10"]),
    "medusa": ("small/medusa", ["tree={use: dynamic, depth: 4, width: 4, nodes: 10}"]),
    "eagle-parallelspec": (
        "small/compositions/eagle-parallelspec",
        ["tree={use: dynamic, depth: 5, width: 4, nodes: 10}"],
    ),
}
"""By picture a recipe, and settings for a tree that is small enough for a page."""
STYLE = re.compile(r"^(?::root \{.*?^\}|@media \(prefers-color-scheme: dark\) \{.*?^\}|[^\n]*(?:edge|box|token|number|"
                   r"space|track|rect\.[pq])[^\n]*\})$", re.MULTILINE | re.DOTALL)  # fmt: skip
SIZE = re.compile(r'<svg role="img" aria-label="([^"]*)" width="(\d+)" height="(\d+)" viewBox="0 0 \d+ \d+">')
CYCLES = 5
EDGE = 12  # pixels of ground around a tree


def load(recipe: str, *overrides: str) -> Pipeline:
    """The pipeline of a recipe by name; trees have the size that it sets, not one by the costs of this machine."""
    return Pipeline.build(plan(Recipe.read(recipe, [*overrides, "run.costs=null"]), discover()))


def draw_method(name: str) -> str:
    """The cycle of the first 24 tokens that accepts most, as a picture that needs no page's style."""
    recipe, settings = TREES[name]
    found = trace(load(recipe, *settings, "sampling.max_new_tokens=24"), QUESTION)
    drawn = draw_tree(max(found.cycles, key=interest))
    label, width, height = SIZE.search(drawn).groups()  # type: ignore[union-attr] - drawn above
    return SIZE.sub(lambda _: open_picture(label, int(width), int(height)), drawn) + "\n"


def draw_cycles() -> str:
    """The five cycles in a row that accept most, animated."""
    found = trace(load("eagle3", "tree.nodes=10", "sampling.max_new_tokens=48"), QUESTION)
    starts = range(len(found.cycles) - CYCLES + 1)
    first = max(starts, key=lambda start: sum(len(each.path) for each in found.cycles[start : start + CYCLES]))
    content, width, height, style = animate(found, first, CYCLES)
    label = f"Cycles {first + 1} to {first + CYCLES}: drafts of ten tokens, and what one forward pass accepts of each"
    return f"{open_picture(label, width, height, style)}{content}</svg>\n"


def open_picture(label: str, width: int, height: int, style: str = "") -> str:
    """The beginning of a picture that needs no page's style."""
    css = (FOLDER.parents[1] / "plugins/specframe-report/src/specframe_report/trace.css").read_text(encoding="utf-8")
    wide, high = width + 2 * EDGE, height + 2 * EDGE
    rules = "\n".join(STYLE.findall(css)) + style
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" width="{wide}" height="{high}" '
        f'viewBox="{-EDGE} {-EDGE} {wide} {high}"><style>\n{rules}\n</style>'
        f'<rect x="{-EDGE}" y="{-EDGE}" width="{wide}" height="{high}" rx="10" style="fill: var(--ground)"/>'
    )


def interest(cycle: TracedCycle) -> tuple[int, int]:
    """Rank of a cycle as an illustration: accepted tokens, but for the last of them, which most readers do without."""
    rejected = len(cycle.nodes) - 1 - len(cycle.path)
    return len(cycle.path), rejected


def draw(names: list[str]) -> None:
    """Writes the pictures that are named, or all; raises InputError without native passes, whose bits they show."""
    load_native()
    drawings = {f"tree-{name}": lambda name=name: draw_method(name) for name in TREES}
    drawings["cycles"] = draw_cycles
    for name in names or drawings:
        (FOLDER / f"{name}.svg").write_text(drawings[name](), encoding="utf-8")
        print(FOLDER / f"{name}.svg", flush=True)


if __name__ == "__main__":
    draw(sys.argv[1:])
