"""Every recipe of the repository validates, and those whose models are here run."""

import json
from pathlib import Path

import pytest

from specframe.cli.main import main
from specframe.neural.weights.checkpoint import locate
from specframe.recipes.build import Part, plan
from specframe.recipes.recipe import Recipe
from tests.repo.repository import RECIPES, ROOT, name

READ = {recipe: Recipe.read(recipe) for recipe in RECIPES}
SMOKE = ["sampling.max_new_tokens=8", "run.repeats=0", "run.prompts=[Hello]"]


def models(recipe: Path) -> list[str]:
    """The models and weights that a recipe loads."""
    data = READ[recipe].data
    sections = [data.get("target"), data.get("drafter")]
    return [
        section[option]
        for section in sections
        if isinstance(section, dict)
        for option in ("model", "weights")
        if section.get(option)
    ]


def is_here(model: str) -> bool:
    """True where a folder or an embedded model is found; one that should be embedded and is not fails its tests."""
    return model.startswith("zoo://") or (ROOT / model).is_dir()


RUNNABLE = [recipe for recipe in RECIPES if all(map(is_here, models(recipe)))]


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_there_are_recipes_and_the_first_one_runs():
    assert ROOT / "recipes" / "falcon.yaml" in RUNNABLE, "its models are not installed: pip install the zoo"


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_a_recipe_validates(recipe, registry):
    plan(READ[recipe], registry)


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_a_recipe_states_what_it_is_and_how_to_run_it(recipe):
    opening = recipe.read_text(encoding="utf-8").split("extends:")[0]
    assert opening.startswith("# ")
    assert f"specframe run {name(recipe)}" in opening


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    """Costs of a machine on which drafts pay: the passes of every recipe's drafter need not be timed on this one."""
    path = tmp_path_factory.mktemp("costs") / "costs.json"
    path.write_text(json.dumps({"cycle_seconds": {"1": 1.0, "64": 2.0}, "draft_seconds": 0.01}))
    return path


@pytest.mark.sampled
@pytest.mark.parametrize("recipe", RUNNABLE, ids=name)
def test_a_recipe_runs(recipe, costs, tmp_path, capsys):
    given = [f"run.costs={costs}"] if READ[recipe].data.get("run", {}).get("costs") else []
    assert main(["run", name(recipe), *SMOKE, *given, "--json", "--out", str(tmp_path)]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 1 <= figures["tokens"] <= 8
    assert figures["tau"] >= 1
    assert json.loads((tmp_path / "run.json").read_text())["recipe"]["path"] == name(recipe)


def is_untrained(recipe: Path) -> bool:
    """True for a recipe to the letter of a paper whose first line declares that no weights come with it."""
    return recipe.parent.name == "papers" and "No weights come with it" in recipe.read_text("utf-8").partition("\n")[0]


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_a_recipes_drafter_is_trained(recipe, registry):
    """A drafter with something to train comes with weights: noise would be a recipe that only looks like a method.

    A drafter around others keeps what they keep. Recipes to the letter of a paper may declare that they have none.
    """
    drafter = plan(READ[recipe], registry).parts["drafter"]
    if is_untrained(recipe):
        assert not drafter.options.get("weights") and hasattr(drafter.component, "save")
        return
    parts = [option for option in drafter.options.values() if isinstance(option, Part)]
    inner = [part for part in parts if part.entry.kind == "drafter" and hasattr(part.component, "save")]
    for part in inner or [drafter, *parts]:
        if hasattr(part.component, "save"):
            assert part.options.get("weights") or part.options.get("model"), f"{part.entry.qualified} is not trained"


@pytest.mark.sampled
@pytest.mark.parametrize("recipe", RUNNABLE, ids=name)
def test_a_recipe_trains_as_its_weights_were_trained(recipe, registry):
    """The record of embedded weights, of the last stage where there are several, has the recipe's settings.

    Those of recipes/training come without weights; they begin as layers of the target, or with other recipes' weights.
    So may those of recipes/papers.
    """
    read = plan(READ[recipe], registry)
    drafter = read.parts["drafter"]
    head = drafter.options.get("head")
    trained = head if isinstance(head, Part) and hasattr(head.component, "save") else None
    weights = (trained and trained.options.get("weights")) or drafter.options.get("weights")
    if not weights or recipe.parent.name == "training":
        assert ("train" in read.settings) == (recipe.parent.name == "training" or is_untrained(recipe))
        return
    record = json.loads(sorted(locate(weights).glob("train*.json"))[-1].read_text())["settings"]
    settings = json.loads(json.dumps(vars(read.settings["train"]), default=str))
    assert {key: settings[key] for key in record if key != "validate_every"} == {
        key: value for key, value in record.items() if key != "validate_every"
    }
