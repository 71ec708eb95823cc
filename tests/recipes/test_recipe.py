from pathlib import Path

import pytest

from specframe.kernel.errors import RecipeError
from specframe.recipes.recipe import Recipe

PARENT = """\
specframe: 1
target: {use: table, vocab: 5}
drafter:
  use: lookup
  ngram: 2
loss:
  - {use: distillation, weight: 1.0}
run: {prompts: [hello], seed: 3}
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_every_value_knows_its_file_and_line(tmp_path):
    path = write(tmp_path, "a.yaml", PARENT)
    recipe = Recipe.read(path)
    assert recipe.origin(("drafter", "ngram")) == f"{path}:5"
    assert recipe.origin(("loss", 0, "weight")) == f"{path}:7"
    assert recipe.origin(("drafter", "absent")) == f"{path}:3"  # the nearest section


def test_a_child_overrides_single_values_of_its_parent(tmp_path):
    parent = write(tmp_path, "a.yaml", PARENT)
    child = write(tmp_path, "b.yaml", "extends: a.yaml\ndrafter: {ngram: 4}\n")
    recipe = Recipe.read(child)
    assert recipe.data["drafter"] == {"use": "lookup", "ngram": 4}
    assert recipe.origin(("drafter", "ngram")) == f"{child}:2"
    assert recipe.origin(("drafter", "use")) == f"{parent}:4"
    assert "extends" not in recipe.data
    assert ("extends",) not in recipe.origins and ("drafter", "ngram") in recipe.origins


def test_of_several_parents_the_later_ones_lie_over_the_earlier(tmp_path):
    (tmp_path / "base").mkdir()
    method = write(tmp_path, "method.yaml", "extends: base/large.yaml\ndrafter: {use: lookup, ngram: 2}\n")
    write(tmp_path, "base/large.yaml", "target: {use: hf, model: large}\nrun: {seed: 3}\n")
    small = write(tmp_path, "base/small.yaml", "target: {use: hf, model: small}\n")
    child = write(tmp_path, "child.yaml", "extends: [method.yaml, base/small.yaml]\nrun: {repeats: 2}\n")
    recipe = Recipe.read(child)
    assert recipe.data == {
        "target": {"use": "hf", "model": "small"},
        "drafter": {"use": "lookup", "ngram": 2},
        "run": {"seed": 3, "repeats": 2},
    }
    assert recipe.origin(("target", "model")) == f"{small}:1"
    assert recipe.origin(("drafter", "ngram")) == f"{method}:2"
    assert recipe.path == child


def test_the_same_parent_by_two_ways_is_no_circle(tmp_path):
    write(tmp_path, "root.yaml", "run: {seed: 1}\n")
    for name in ("left", "right"):
        write(tmp_path, f"{name}.yaml", f"extends: root.yaml\n{name}: 1\n")
    child = write(tmp_path, "child.yaml", "extends: [left.yaml, right.yaml]\n")
    assert Recipe.read(child).data == {"run": {"seed": 1}, "left": 1, "right": 1}


def test_a_parent_in_another_folder_is_named_without_detours(tmp_path):
    (tmp_path / "small").mkdir()
    parent = write(tmp_path, "a.yaml", PARENT)
    child = write(tmp_path, "small/b.yaml", "extends: ../a.yaml\n")
    assert Recipe.read(child).origin(("drafter", "ngram")) == f"{parent}:5"


def test_changing_use_drops_the_old_parts_options(tmp_path):
    write(tmp_path, "a.yaml", PARENT)
    child = write(tmp_path, "b.yaml", "extends: a.yaml\ndrafter: {use: none}\n")
    assert Recipe.read(child).data["drafter"] == {"use": "none"}
    assert Recipe.read(tmp_path / "a.yaml", ["drafter.use=none"]).data["drafter"] == {"use": "none"}
    same = Recipe.read(tmp_path / "a.yaml", ["drafter.use=lookup"]).data["drafter"]
    assert same == {"use": "lookup", "ngram": 2}


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("target.vocab=7", ("target", "vocab"), 7),
        ("run.prompts=[a, b=c]", ("run", "prompts"), ["a", "b=c"]),
        ("loss.0.weight=3e-1", ("loss", 0, "weight"), 0.3),
        ("tree={use: chain, depth: 2}", ("tree", "depth"), 2),
        ("run.seed=null", ("run", "seed"), None),
    ],
)
def test_overrides_are_yaml_and_may_reach_anywhere(tmp_path, override, key, value):
    recipe = Recipe.read(write(tmp_path, "a.yaml", PARENT), [override])
    node = recipe.data
    for step in key:
        node = node[step]
    assert node == value
    assert recipe.origin(key) == "command line"


def test_interpolation_is_omegaconfs(tmp_path):
    recipe = Recipe.read(write(tmp_path, "a.yaml", PARENT + "tree: {use: chain, depth: '${drafter.ngram}'}\n"))
    assert recipe.data["tree"]["depth"] == 2


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        ("target: [", [], ["a.yaml:1", "not valid YAML"]),
        ("- a\n- b\n", [], ["mapping of sections"]),
        ("extends: a.yaml\n", [], ["extends itself"]),
        ("extends: gone.yaml\n", [], ["gone.yaml", "no such recipe"]),
        ("extends: 3\n", [], ["names a recipe file or a list of them"]),
        ("extends: [3]\n", [], ["names a recipe file or a list of them"]),
        ("a: 1\na: 2\n", [], ["a.yaml:2", "duplicate key"]),
        ("a: ${b}\n", [], ["b"]),
        ("a: 1\n", ["b"], ["'b'", "key=value"]),
        ("a: [1]\n", ["a.7.c=1"], ["a.7.c", "does not exist"]),
    ],
)
def test_bad_recipes_are_reported_with_what_is_wrong(tmp_path, text, overrides, words):
    path = write(tmp_path, "a.yaml", text)
    with pytest.raises(RecipeError) as caught:
        Recipe.read(path, overrides)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"nowhere\.yaml: no such recipe"):
        Recipe.read(tmp_path / "nowhere.yaml")
