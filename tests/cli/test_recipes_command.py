"""Recipes by name, listed and copied; and that a wheel takes every one of them along."""

import tomllib

import pytest

from specframe.cli.main import main
from specframe.recipes.folders import recipes_folder, shipped_recipes
from specframe.recipes.recipe import Recipe
from tests.repo.repository import ROOT


def test_recipes_have_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert Recipe.read("small/lookup").data == Recipe.read(ROOT / "recipes" / "small" / "lookup.yaml").data
    assert main(["validate", "small/lookup"]) == 0
    assert main(["validate", "smal/lookup"]) == 2
    assert "did you mean 'small/lookup'" in capsys.readouterr().err


def test_a_short_name_means_one_recipe(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert Recipe.read("swift").data == Recipe.read("own-layers/swift").data
    assert Recipe.read("falcon").data != Recipe.read("small/falcon").data, "a whole name comes before a short one"
    assert main(["validate", "eagle-parallelspec"]) == 2
    message = capsys.readouterr().err
    assert "compositions/eagle-parallelspec or small/compositions/eagle-parallelspec" in message


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lookup").write_text("specframe: 1\ntarget: table\n")
    assert Recipe.read("lookup").data["target"] == "table"


def test_they_are_listed(capsys):
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list(shipped_recipes())) > 20
    assert not any(line.startswith("base/") for line in lines)
    assert all(len(line.split(None, 1)) == 2 for line in lines), "a recipe without a first comment"


@pytest.mark.parametrize("name", ["lookup", "small/compositions/eagle-parallelspec"])
def test_a_copy_is_the_same_recipe(name, tmp_path, capsys):
    copy = tmp_path / "mine.yaml"
    assert main(["recipes", name, "--out", str(copy)]) == 0
    assert Recipe.read(copy).data == Recipe.read(name).data
    assert main(["recipes", name, "--out", str(copy)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_wheel_takes_all_of_them_along():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    taken = {
        place.removeprefix("share/specframe/recipes").strip("/"): patterns
        for place, patterns in project["tool"]["setuptools"]["data-files"].items()
    }
    folder = recipes_folder()
    folders = {path.parent.relative_to(folder).as_posix().strip(".") for path in folder.rglob("*.yaml")}
    assert folders == set(taken)
    for place, patterns in taken.items():
        assert patterns == [f"recipes/{place}/*.yaml".replace("//", "/")]
