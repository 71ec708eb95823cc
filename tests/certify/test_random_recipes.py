"""Random valid recipes: each is certified or honestly not shown, none is refused."""

import random
from itertools import count, islice

import pytest

from specframe.certify.certify import certify_plan
from specframe.cli.render.certificate import verdict
from specframe.components.targets.tiny import tiny_model
from specframe.kernel.errors import RecipeError
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe

REGISTRY = discover()
DRAWS = ["top", "iid", "without_replacement"]


def random_recipe(chance: random.Random) -> str:
    """The text of a recipe; not all of them are valid."""

    def options(**values):
        chosen = {name: chance.choice(value) for name, value in values.items()}
        return {name: value for name, value in chosen.items() if value is not None}

    model = str(tiny_model(3))
    drafters = [
        {"use": "model", "model": model, "dtype": "float64"},
        {"use": "lookup"} | options(length=[1, 2, 4]),
        {"use": "suffix"} | options(cap=[2, 4]),
        {"use": "recycling"} | options(nodes=[3, 6]),
        *({"use": name} for name in ("falcon", "eagle", "medusa", "parallelspec", "coral")),
    ]
    trees = [
        None,
        {"use": "chain"} | options(depth=[1, 2, 3, 5], draw=DRAWS),
        {"use": "fixed"} | options(widths=[[2], [2, 1], [2, 2], [3, 2], [1, 2, 1]], draw=DRAWS),
        {"use": "dynamic"} | options(depth=[1, 2, 4], width=[1, 2, 4], nodes=[2, 4, 8]),
        {"use": "beam"} | options(depth=[1, 2], width=[1, 2, 3]),
        {"use": "dyspec"} | options(depth=[1, 2, 3], width=[1, 2], nodes=[2, 4]),
        {"use": "greedy"} | options(widths=[[2], [2, 1]]),
        {"use": "adaptive"} | options(depth=[2], draw=DRAWS) | {"costs": [1.0, 1.3, 1.65]},
    ]
    verifiers = ["match", "recursive", "traversal", "block", "kseq", "transport"]
    sampling = options(
        temperature=[0.0, 0.0, 0.3, 0.7, 1.0, 1.3, 2.0],
        top_k=[None, None, 1, 2, 50],
        top_p=[None, None, 0.05, 0.5, 0.9],
        min_p=[None, None, 0.1, 0.9],
        repetition_penalty=[None, None, None, 1.5],
        frequency_penalty=[None, None, None, 0.8],
        presence_penalty=[None, None, None, -0.5],
    )
    tree = chance.choice(trees)
    lines = ["specframe: 1", "target: {use: table}", f"drafter: {chance.choice(drafters)!r}"]
    lines += [f"tree: {tree!r}"] * (tree is not None)
    return "\n".join([*lines, f"verifier: {chance.choice(verifiers)}", f"sampling: {sampling!r}", ""])


def valid_plans(folder, seed):
    """The valid ones of a seed's recipes, each with its text."""
    chance = random.Random(seed)
    path = folder / "recipe.yaml"
    for _ in count():
        text = random_recipe(chance)
        path.write_text(text, encoding="utf-8")
        try:
            yield text, plan(Recipe.read(path), REGISTRY)
        except RecipeError:
            continue


def outcome(valid, budget):
    """`lossless` or `not shown`; else the certificate's verdict."""
    found = certify_plan(valid, budget=budget, seeds=1).as_dict()
    return verdict(found).partition(":")[0] if found["tv"] < 1e-9 else verdict(found)


def check(folder, seed, number, budget):
    for text, valid in islice(valid_plans(folder, seed), number):
        assert outcome(valid, budget) in ("lossless", "not shown"), text


@pytest.mark.full
def test_random_recipes_are_certified_or_not_shown(tmp_path):
    check(tmp_path, seed=0, number=5, budget=3000)


@pytest.mark.slow
def test_two_hundred_random_recipes_are_certified_or_not_shown(tmp_path):
    check(tmp_path, seed=1, number=200, budget=20_000)
