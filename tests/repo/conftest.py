"""Shared parts of the tests of the repository's own scripts."""

import importlib

import pytest

from tests.repo.repository import ROOT


@pytest.fixture
def generators(monkeypatch):
    """Imports a script in the pages' folder by name."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module
