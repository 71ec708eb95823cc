"""The recipes to the letter of their papers: every setting is the paper's, or declared as another with a reason."""

from pathlib import Path

import pytest

from specframe.cli.main import main
from specframe.recipes.folders import find_recipe
from tests.repo.repository import RECIPES, ROOT

LETTER = sorted(recipe.stem for recipe in RECIPES if recipe.parent.name == "papers")


def test_every_recipe_to_the_letter_has_its_papers_values(generators):
    assert sorted(generators("letter").read_papers()) == LETTER


@pytest.mark.parametrize("recipe", LETTER)
def test_a_setting_is_the_papers_or_has_a_reason(generators, recipe):
    for setting in generators("letter").settings(recipe):
        assert setting.paper is not None or setting.why, f"{setting.name}: whose value is it, if not the paper's?"
        same = setting.here == setting.paper
        assert same != bool(setting.why), f"{setting.name}: {setting.here} here, {setting.paper} there: {setting.why}"
        assert setting.place or setting.paper is None, f"{setting.name}: where is it in the paper?"


@pytest.mark.parametrize("recipe", LETTER)
def test_every_setting_of_a_method_has_an_entry(generators, recipe):
    letter = generators("letter")
    missing = letter.stated(recipe) - letter.read_papers()[recipe].keys()
    assert not missing, f"docs/papers.yaml has no value of the paper for {missing}"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", LETTER)
def test_a_recipe_to_the_letter_is_certified(recipe, capsys):
    """Its drafter, tree and rule emit the target's distribution on the certificate's small targets, trained or not."""
    assert main(["certify", str(ROOT / f"recipes/papers/{recipe}.yaml"), "--exact-only"]) == 0


def test_the_method_pages_show_every_recipes_settings():
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/methods").glob("*.md"))
    assert [recipe for recipe in LETTER if f"<!-- settings {recipe} -->" not in pages] == []


def test_a_papers_tree_is_shown_as_its_nodes_per_level(generators):
    assert generators("letter").nodes_per_level(["0", "1", "0.0", "0.0.0"]) == [2, 1, 1]


def test_a_setting_that_no_recipe_has_is_an_error(generators):
    with pytest.raises(KeyError, match="masks"):
        generators("letter").value("falcon", "drafter.masks")


def test_recipes_to_the_letter_come_last_by_name(generators):
    """`coral` means the recipe that it meant before there was one to the letter."""
    assert find_recipe("coral") == Path(ROOT / "recipes/small/coral.yaml")
    assert find_recipe("eagle") == Path(ROOT / "recipes/eagle.yaml")
    assert find_recipe("parallelspec-medusa") == Path(ROOT / "recipes/papers/parallelspec-medusa.yaml")
    find = generators("catalogue").find_recipe
    assert (find("coral"), find("falcon")) == ("small/coral.yaml", "falcon.yaml")
