"""Fixtures of every test, the core's and the plugins': a small model, a recipe around it, the same random numbers."""

import gc
from pathlib import Path

import pytest
import setuptools  # noqa: F401 - it replaces distutils, which it can do only before a test imports that: inductor needs it
import torch

from specframe.recipes.discovery import discover
from specframe.recipes.registry import Registry

pytest_plugins = ["pytester", "tests.tiers", "tests.seeing_model"]


def pytest_collection_finish() -> None:
    """Leaves what was imported out of the search for garbage: a tenth of the tests' time went into it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True)
def same_numbers():
    """Tests that draw their inputs draw the same ones, alone or in a group."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def registry() -> Registry:
    """The built-ins and the components of all installed plugins, discovered once: to be read, not added to."""
    return discover()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small random model of one character a token, and its tokenizer."""
    from tests.small_model import make_model, make_tokenizer  # transformers: not for those that collect alone

    folder = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sampled_recipe(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe around the small model whose trees and texts are drawn."""
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(
        f"target: {{use: hf, model: '{model_folder}', dtype: float64}}\n"
        "drafter: {use: falcon, block: 2}\n"
        "tree: {use: fixed, widths: [3, 2, 1], draw: iid}\n"
        "verifier: {use: recursive}\n"
        "sampling: {temperature: 1.0, max_new_tokens: 20}\n"
    )
    return path


@pytest.fixture
def drafting() -> str:
    """The drafter and the policy of `recipe`, two sections of YAML; a folder of tests may have others."""
    return "drafter: {use: falcon, block: 2}\ntree: {use: dynamic, depth: 4, width: 3, nodes: 8}\n"


@pytest.fixture
def recipe(model_folder: Path, tmp_path: Path, drafting: str) -> Path:
    """A recipe around the small model."""
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"target: {{use: hf, model: '{model_folder}', dtype: float64}}\n{drafting}"
        "verifier: {use: match}\n"
        "sampling: {temperature: 0.0, max_new_tokens: 20}\n"
        "run: {prompts: [hello there, good morning], seed: 1, repeats: 1}\n"
    )
    return path
