import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from types import SimpleNamespace

import pytest

from specframe.kernel.errors import PluginError, RecipeError
from specframe.plugin import hookimpl
from specframe.recipes import discovery
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.folders import recipes_folder, shipped_recipes
from specframe.recipes.recipe import Recipe
from specframe.recipes.registry import KINDS, Registration, Registry
from specframe.recipes.versions import own_packages


class Point:
    """Stands for a pip package's entry point."""

    def __init__(self, package, plugin=None, error=None):
        self.name, self.dist, self.plugin, self.error = package, SimpleNamespace(name=package), plugin, error

    def load(self):
        if self.error:
            raise self.error
        return self.plugin


def registers(*components):
    class Plugin:
        @hookimpl
        def specframe_register(self, register):
            for kind, name, target, summary in components:
                register(kind, name, target, summary=summary)

    return Plugin()


GOOD = ("tree", "bush", "json:dumps", "a bush")


def test_a_plugins_components_appear_with_the_built_ins():
    registry = discover([Point("specframe-bush", registers(GOOD))])
    assert registry.find("tree", "bush").package == "specframe-bush"
    assert registry.find("tree", "chain").package == "specframe"
    assert registry.broken == {}


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (Point("p", error=ModuleNotFoundError("No module named 'flash'")), "ModuleNotFoundError: No module"),
        (Point("p", registers(("tre", "bush", "json:dumps", "s"))), "unknown kind 'tre'; did you mean 'tree'"),
        (Point("p", registers(("tree", "Big Bush", "json:dumps", "s"))), "no component name"),
        (Point("p", registers(("tree", "bush", "json.dumps", "s"))), "module:attr"),
        (Point("p", registers(("tree", "bush", "json:dumps", " "))), "no summary"),
        (Point("p", registers(GOOD, GOOD)), "registered twice"),
        (Point("p", SimpleNamespace()), "implements no specframe hook"),
    ],
)
def test_a_broken_plugin_is_named_and_the_others_work(point, words):
    registry = discover([point, Point("specframe-bush", registers(GOOD))])
    assert words in registry.broken["p"]
    assert registry.find("tree", "bush").package == "specframe-bush"
    assert not any(entry.package == "p" for entry in registry.entries)  # all or none


def test_a_misspelt_hook_is_an_error_not_silence():
    class Plugin:
        @hookimpl
        def specframe_registre(self, register): ...

    assert "specframe_registre" in discover([Point("p", Plugin())]).broken["p"]


def test_two_plugins_with_one_name_make_it_ambiguous():
    registry = discover([Point("one", registers(GOOD)), Point("two", registers(GOOD))])
    with pytest.raises(PluginError, match="'one/bush' or 'two/bush'"):
        registry.find("tree", "bush")
    assert registry.find("tree", "two/bush").package == "two"


def test_recipes_of_the_project_go_on_working_when_a_plugin_takes_a_name(tmp_path, monkeypatch):
    thief = Point("thief", registers(("drafter", "lookup", "json:dumps", "another's look-up")))
    registry = discover([*entry_points(group="specframe"), thief])
    assert plan(Recipe.read("small/lookup"), registry).parts["drafter"].entry.package == "specframe"
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"extends: {dict(shipped_recipes())['small/lookup']}\ndrafter: {{use: lookup}}\n")
    with pytest.raises(RecipeError, match="'specframe/lookup' or 'thief/lookup'"):
        plan(Recipe.read(mine), registry)
    monkeypatch.chdir(recipes_folder())  # whatever folder the command is given in
    with pytest.raises(RecipeError, match="is ambiguous"):
        plan(Recipe.read("small/falcon", ["drafter={use: lookup}", "tree=null"]), registry)


def test_our_names_use_hyphens_and_underscores_are_read_as_such():
    registry = discover()
    ours = [entry for kind in KINDS for entry in registry.of(kind) if entry.package in own_packages()]
    assert len(ours) > 50 and not [entry.qualified for entry in ours if "_" in entry.name]
    assert registry.find("loss", "cross-entropy") is registry.find("loss", "specframe/cross-entropy")
    registry.add(Registration("tree", "two_words", "x:Y", "a tree", "mine"))
    assert registry.find("tree", "two-words").name == "two_words"
    with pytest.raises(PluginError, match="registered twice"):
        registry.add(Registration("tree", "two-words", "x:Y", "a tree", "mine"))


def test_installed_plugins_are_read_once_for_a_search_path(monkeypatch, tmp_path):
    reads = []

    def read(group):
        reads.append(group)
        return [Point("specframe-bush", registers(GOOD))]

    monkeypatch.setattr(discovery, "entry_points", read)
    first = discover()
    first.add(Registration("tree", "shrub", "x:Y", "a tree", "mine"))
    first.broken["mine"] = "it is"
    second = discover()
    assert len(reads) == 1 and len(first.entries) == len(second.entries) + 1 and not second.broken
    monkeypatch.syspath_prepend(tmp_path)
    discover()
    monkeypatch.setenv("SPECFRAME_PLUGINS", "")
    assert {entry.package for entry in discover().entries} == {"specframe"} and len(reads) == 3


def test_the_switch_turns_plugins_off(monkeypatch):
    points = [Point("one", registers(GOOD)), Point("two", registers(GOOD))]
    monkeypatch.setenv("SPECFRAME_PLUGINS", "")
    assert not any(e.package in ("one", "two") for e in discover(points).entries)
    monkeypatch.setenv("SPECFRAME_PLUGINS", "two, three")
    assert {e.package for e in discover(points).entries} == {"specframe", "two"}


def test_a_component_that_cannot_be_imported_is_reported_with_the_reason():
    registry = Registry()
    registry.add(Registration("tree", "bush", "nowhere.at.all:Bush", "a bush", "p"))
    with pytest.raises(PluginError, match=r"nowhere.at.all:Bush: ModuleNotFoundError"):
        registry.find("tree", "bush").load()


def test_entry_points_of_real_packages_are_read():
    point = EntryPoint(name="x", value="json", group="specframe")
    assert "no specframe hook" in discover([point]).broken["x"]


@pytest.mark.parametrize("command", ["--help", "plugins", "--version"])
def test_looking_around_imports_no_torch(command):
    code = (
        "import sys\nfrom specframe.cli.main import main\n"
        f"assert main([{command!r}]) == 0\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
