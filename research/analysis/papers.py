"""Tau of the recipes to the letter of their papers, on held-out prompts: ``python research/analysis/papers.py FILE``.

FILE holds prompts, such as the 24 of docs/howto/bench.md. Every recipe of recipes/papers drafts in its paper's own
tree, with its drafter in the folder --weights; those that have none there are left out. At a temperature the trees of
given shape draw their siblings, and `recursive` tests them in turn, as in SpecInfer and EAGLE.

A recipe may be followed by overrides, in quotes: ``--recipes eagle "eagle 'tree={use: chain, depth: 5}'"``.

The change is to the first recipe's, over the same prompts redrawn for both, so that what makes a prompt hard cancels.
Intervals are 95 %, by 10,000 bootstrap draws of the prompts. No time is measured: a busy machine gives the same table.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from fusion import change_of, interval, redrawn
from torch import Tensor

import specframe
from specframe import read_prompts
from specframe.recipes.recipe import Recipe

RECIPES = Path(__file__).parents[2] / "recipes" / "papers"
OTHERS = {"eagle2": "eagle", "falcon-dynamic": "falcon", "coral-router": "coral"}
"""Recipes whose drafter another one trains."""
UNTRAINED = ("sps", "lookahead", "pld")
"""Recipes that need no training, or come with weights."""
SHAPED = ("fixed", "chain")
"""Trees of a given shape, whose siblings can be drawn."""


def overrides(recipe: Path, weights: Path, temperature: float) -> list[str] | None:
    """Values that replace the recipe's, its trained weights among them; None for a recipe that is not trained there."""
    found = [f"sampling.temperature={temperature}", "run.batch=8"]
    if recipe.stem not in UNTRAINED:
        folders = {"drafter.weights": weights / OTHERS.get(recipe.stem, recipe.stem)}
        if recipe.stem == "coral-router":
            folders["drafter.head.weights"] = weights / recipe.stem
        if not all((folder / "model.safetensors").is_file() for folder in folders.values()):
            return None
        found += [f"{key}={folder}" for key, folder in folders.items()]
    if temperature and _tree(recipe) in SHAPED:
        found += ["tree.draw=iid", "verifier={use: recursive}"]
    return found


def _tree(recipe: Path) -> str | None:
    tree = Recipe.read(recipe).data.get("tree")
    return tree["use"] if tree else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row of a table for each recipe that is trained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--weights", type=Path, default=Path("runs/papers"), help="the folder of trained drafters")
    parser.add_argument("--recipes", nargs="+", default=sorted(path.stem for path in RECIPES.glob("*.yaml")))
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args(arguments)
    prompts = read_prompts(options.prompts)
    first: Tensor | None = None
    for contestant in options.recipes:
        name, *more = shlex.split(contestant)
        recipe = RECIPES / f"{name}.yaml"
        given = overrides(recipe, options.weights, options.temperature)
        if given is None:
            continue
        given += [f"sampling.max_new_tokens={options.max_new_tokens}", *more]
        found = specframe.measure_tau(specframe.load(recipe, overrides=given), prompts)
        draws = redrawn(found.cycles, found.cycles + found.reached.sum(1))
        low, high = interval(draws)
        first = draws if first is None else first
        levels = " ".join(f"{share:.2f}" for share in (found.reached.sum(0) / found.cycles.sum()).tolist())
        tau = f"{found.tau:.2f} [{low:.2f}, {high:.2f}]"
        print(f"| `{contestant}` | {tau} | {change_of(draws, first)} | {levels} |", flush=True)


if __name__ == "__main__":
    main()
