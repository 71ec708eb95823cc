"""An old name works, with a warning that names its replacement and the last release."""

from typing import ClassVar

import pytest
from packaging.version import Version

from specframe import __version__
from specframe.kernel.capabilities import Promise
from specframe.kernel.errors import RecipeError
from specframe.plugin import Renamed, hookimpl
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.recipes.registry import RENAMED_KINDS
from tests.recipes.test_plugins import Point

GONE = "0.4"
RECIPE = """\
target: {use: table, vocab: 5}
drafter: {use: model, model: no/model}
tree: {%s}
verifier: {use: match}
"""


class Bush:
    """A tree whose option had another name."""

    renamed: ClassVar = {"budget": Renamed("nodes", until=GONE)}

    def __init__(self, *, nodes: int) -> None:
        self.nodes = nodes
        self.promise = Promise(frozenset(), nodes)


class Plugin:
    @hookimpl
    def specframe_register(self, register):
        place = f"{__name__}:Bush"
        register("tree", "bush", place, summary="a bush")
        register("tree", "shrub", place, summary="the old name of bush", renamed=Renamed("bush", until=GONE))


class OldKind:
    @hookimpl
    def specframe_register(self, register):
        register("sight", "all", f"{__name__}:Bush", summary="a component of a kind that had another name")


def read(tmp_path, tree):
    path = tmp_path / "r.yaml"
    path.write_text(RECIPE % tree)
    return plan(Recipe.read(path), discover([Point("specframe-bush", Plugin())])).parts["tree"]


def test_an_old_option_sets_the_new_one_with_a_warning(tmp_path):
    with pytest.warns(FutureWarning, match=r"r.yaml:3: tree.budget is now called 'nodes'; .* gone in 0.4"):
        assert read(tmp_path, "use: bush, budget: 7").options == {"nodes": 7}


def test_an_old_component_is_the_new_one_with_a_warning(tmp_path):
    with pytest.warns(FutureWarning, match=r"tree 'shrub' is now called 'bush'; the old name will be gone in 0.4"):
        assert read(tmp_path, "use: shrub, nodes: 7").build().nodes == 7


def test_an_old_kind_is_the_new_one_with_a_warning():
    with pytest.warns(FutureWarning, match=r"the kind 'sight' of 'all' in specframe-bush is now called 'kv_selection'"):
        assert discover([Point("specframe-bush", OldKind())]).find("kv_selection", "all").package == "specframe-bush"


def test_new_names_do_not_warn(tmp_path):
    assert read(tmp_path, "use: bush, nodes: 7").options == {"nodes": 7}  # a warning would be an error here


@pytest.mark.parametrize("given", ["budget: 7, nodes: 8", "nodes: 8, budget: 7"])
def test_both_names_at_once_are_refused(tmp_path, given):
    with pytest.warns(FutureWarning), pytest.raises(RecipeError, match="'nodes' is given twice, by its old name"):
        read(tmp_path, f"use: bush, {given}")


@pytest.mark.parametrize(("parents", "own"), [("nodes: 8", "budget: 7"), ("budget: 8", "nodes: 7")])
def test_a_recipe_overrides_its_parent_by_either_name(tmp_path, parents, own):
    (tmp_path / "parent.yaml").write_text(RECIPE % f"use: bush, {parents}")
    path = tmp_path / "r.yaml"
    path.write_text(f"extends: parent.yaml\ntree: {{{own}}}\n")
    with pytest.warns(FutureWarning, match="tree.budget is now called 'nodes'"):
        part = plan(Recipe.read(path), discover([Point("specframe-bush", Plugin())])).parts["tree"]
    assert part.options == {"nodes": 7}


def test_no_old_name_outlives_its_release():
    entries = [entry for entry in discover().entries if entry.kind != "model"]
    names = [entry.renamed for entry in entries if entry.renamed]
    names += RENAMED_KINDS.values()
    names += [renamed for entry in entries for renamed in getattr(entry.load(), "renamed", {}).values()]
    assert all(Version(__version__) < Version(renamed.until) for renamed in names)
