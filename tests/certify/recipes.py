"""Recipes of a small composition with broken parts in it, and the plan of one."""

from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe

COPIES = """
specframe: 1
target: {use: table}
drafter: {use: lookup, length: 6}
verifier: VERIFIER
sampling: {temperature: TEMPERATURE}
"""
DRAWN = """
specframe: 1
target: {use: table}
drafter: {use: falcon}
tree: {use: TREE, depth: DEPTH, draw: iid}
verifier: VERIFIER
sampling: {temperature: TEMPERATURE}
"""


def planned(folder, text, broken, **parts):
    """The plan of a recipe whose parts are filled in, next to a file `broken.py` with this code."""
    (folder / "broken.py").write_text(broken, encoding="utf-8")
    for name, value in parts.items():
        text = text.replace(name.upper(), str(value))
    path = folder / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return plan(Recipe.read(path), discover())
