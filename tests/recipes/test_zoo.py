"""Names of registered models: a model's own, and a method's drafter for the recipe's target."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from specframe.kernel.errors import PluginError
from specframe.recipes.build import plan
from specframe.recipes.recipe import Recipe
from specframe.recipes.registry import Registration, Registry
from specframe.recipes.zoo import find_weights, model_folder


class Model(SimpleNamespace):
    def __call__(self) -> Path:
        return Path("/models") / self.name


@pytest.fixture
def registry(monkeypatch):
    """Two targets; Falcon is trained for both, EAGLE for the large one, which is a copy of a Hub model."""
    module = ModuleType("zoo_of_a_test")
    models = [
        Model(name="large", same_as=("owner/Large",)),
        Model(name="large-eagle", method="eagle", target="large"),
        Model(name="large-falcon", method="falcon", target="large"),
        Model(name="small", same_as=()),
        Model(name="small-falcon", method="falcon", target="small"),
    ]
    registry = Registry()
    for number, model in enumerate(models):
        setattr(module, f"model_{number}", model)
        registry.add(Registration("model", model.name, f"zoo_of_a_test:model_{number}", "a model", "zoo"))
    registry.add(Registration("model", "broken", "no_such_module:at_all", "cannot be imported", "broken"))
    monkeypatch.setitem(sys.modules, "zoo_of_a_test", module)
    return registry


@pytest.mark.parametrize(
    ("weights", "target", "found"),
    [
        ("zoo://falcon", "zoo://large", "zoo://large-falcon"),
        ("zoo://falcon", "zoo://small", "zoo://small-falcon"),
        ("zoo://falcon", "zoo://zoo/small", "zoo://small-falcon"),
        ("zoo://falcon", "owner/Large", "zoo://large-falcon"),
        ("zoo://eagle", "zoo://small", "zoo://small-eagle"),  # which does not exist, as the error names it
        ("zoo://falcon", "./a/folder", "zoo://falcon"),
        ("zoo://falcon", None, "zoo://falcon"),
        ("zoo://small-falcon", "zoo://large", "zoo://small-falcon"),
        ("zoo://broken", "zoo://large", "zoo://broken"),
        ("zoo://unheard-of", "zoo://large", "zoo://unheard-of"),
        ("falcon", "zoo://large", "falcon"),
    ],
)
def test_a_method_is_the_drafter_for_the_target(registry, weights, target, found):
    assert find_weights(weights, target, registry) == found


def test_a_model_gives_its_folder(registry):
    assert model_folder("large", registry) == model_folder("zoo://large", registry) == Path("/models/large")
    assert model_folder("zoo/small-falcon", registry) == Path("/models/small-falcon")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "small-eagle",
            r"no drafter of the method 'eagle' is trained for small \(there are zoo://large-eagle\); `specframe train",
        ),
        ("falcon", r"no drafter of the method 'falcon' is trained for this target \(there are zoo://large-falcon, zoo"),
        ("lrage", "no model named 'lrage'; did you mean 'large'"),
        ("broken", "model 'broken' of broken cannot be loaded"),
    ],
)
def test_what_is_not_there_is_one_line(registry, name, message):
    with pytest.raises(PluginError, match=message) as caught:
        model_folder(name, registry)
    assert "\n" not in str(caught.value)


def test_a_recipes_weights_are_found_for_its_target_in_nested_parts_too(tmp_path):
    from specframe.recipes.discovery import discover

    path = tmp_path / "recipe.yaml"
    path.write_text(
        "target: {use: hf, model: zoo://talk-7m}\n"
        "drafter: {use: eagle, weights: zoo://eagle, head: {use: acceptance, layers: 3, weights: zoo://eagle-acceptance}}\n"
        "tree: {use: threshold}\n"
        "verifier: match\n"
    )
    drafter = plan(Recipe.read(path), discover()).parts["drafter"]
    assert drafter.options["weights"] == "zoo://talk-7m-eagle"
    assert drafter.options["head"].options["weights"] == "zoo://talk-7m-eagle-acceptance"
    other = plan(
        Recipe.read(path, ["target.model=zoo://smollm2-135m", "drafter.weights=zoo://hydra"]), discover()
    ).parts["drafter"]
    with pytest.raises(PluginError, match="'hydra' is trained for smollm2-135m"):
        model_folder(other.options["weights"])
