"""Fixtures of every test, the core's and the plugins': the same random numbers in whatever order tests run."""

from pathlib import Path

import pytest
import setuptools  # noqa: F401 - it replaces distutils, which it can do only before a test imports that: inductor needs it
import torch

from specframe.recipes.discovery import discover
from specframe.recipes.registry import Registry

pytest_plugins = ["pytester", "tests.tiers", "tests.seeing_model"]


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
