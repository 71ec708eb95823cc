"""What every test has, the core's and the plugins': the same random numbers in whatever order tests run."""

import pytest
import setuptools  # noqa: F401 - it replaces distutils, which it can do only before a test imports that: inductor needs it
import torch

pytest_plugins = ["pytester", "tests.tiers"]


@pytest.fixture(autouse=True)
def same_numbers():
    """Tests that draw their inputs draw the same ones, alone or in a group."""
    torch.manual_seed(0)
