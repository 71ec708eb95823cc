"""A plugin in the repository edits its own folder: the rest is found there."""

import tomllib

import pytest

from specframe import __version__
from specframe.recipes.versions import series
from tests.repo.repository import PLUGINS, ROOT

CORE = """[project]
name = "specframe"

[project.optional-dependencies]
methods = [ # the recipes' plugins
    "specframe-old>=0.1",
]
testing = ["pytest>=8"]
"""


def plugin(root, name, more=""):
    folder = root / "plugins" / f"specframe-{name}"
    folder.mkdir(parents=True)
    about = f'[project]\nname = "specframe-{name}"\ndependencies = ["specframe-zoo", "specframe>=0.1,<0.2"]\n'
    (folder / "pyproject.toml").write_text(about + more)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "pyproject.toml").write_text(CORE)
    plugin(tmp_path, "new")
    plugin(tmp_path, "door", '[project.optional-dependencies]\ntesting = ["x"]\n[tool.specframe]\nmethods = false\n')
    return tmp_path


def test_every_plugin_is_installed_with_what_its_tests_need(generators, root):
    lines = generators("packages").render_requirements(root).splitlines()
    assert lines[1:] == ["-e plugins/specframe-door[testing]", "-e plugins/specframe-new"]


def test_every_plugin_is_built_with_what_builds_the_core():
    """So that `.ci/run` needs no build environment for each of them."""
    core, *plugins = (tomllib.loads((folder / "pyproject.toml").read_text()) for folder in (ROOT, *PLUGINS))
    assert core["build-system"] == {"requires": ["setuptools>=77"], "build-backend": "setuptools.build_meta"}
    assert all(plugin.get("build-system", core["build-system"]) == core["build-system"] for plugin in plugins)


def test_the_extra_has_every_plugin_of_a_method(generators, root):
    found = generators("packages").render_project(root)
    assert found == CORE.replace('"specframe-old>=0.1"', f'"specframe-new{series(__version__)}"')
    (root / "pyproject.toml").write_text('[project]\nname = "specframe"\n')
    with pytest.raises(ValueError, match="no extra `methods`"):
        generators("packages").render_project(root)


def test_the_version_stands_in_one_file(generators):
    """`python docs/packages.py` writes it everywhere else, so that a release changes `specframe/_version.py`."""
    found = generators("packages").render_versions()
    assert len(found) >= len(PLUGINS) + 4
    assert {path: (ROOT / path).read_text(encoding="utf-8") for path in found} == found
    stated = [path for path, text in found.items() if __version__ in text or series(__version__) in text]
    assert sorted(found) == stated


def test_a_plugins_rows_join_the_table_of_methods(generators):
    ours = {"groups": [{"title": "A", "about": "a", "methods": [{"name": 1}]}], "own": ["drafter/none"]}
    theirs = {"groups": [{"title": title, "about": "b", "methods": [{"name": title}]} for title in "AB"]}
    found = generators("catalogue").merge([ours, theirs, {"own": ["drafter/mine"]}])
    assert [group["title"] for group in found["groups"]] == ["A", "B"]
    assert found["groups"][0] == {"title": "A", "about": "a", "methods": [{"name": 1}, {"name": "A"}]}
    assert found["own"] == ["drafter/none", "drafter/mine"]
    assert len(ours["groups"][0]["methods"]) == 1, "the table that was read stays as it is"


def test_a_methods_page_is_in_the_sites_navigation(generators, tmp_path):
    (tmp_path / "methods").mkdir()
    for name in ("index", "new", "eagle"):
        (tmp_path / "methods" / f"{name}.md").write_text("# A page\n")
    config = {"docs_dir": str(tmp_path), "nav": [{"Overview": "index.md"}, {"Methods": ["methods/index.md"]}]}
    found = generators("navigation").on_config(config)
    assert found["nav"][1] == {"Methods": ["methods/index.md", "methods/eagle.md", "methods/new.md"]}
