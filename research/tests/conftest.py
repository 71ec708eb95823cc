"""Shared parts of the research scripts' tests. All of them are slow: `pytest -m slow research`."""

import importlib
from pathlib import Path

import pytest
import torch

ANALYSIS = Path(__file__).parents[1] / "analysis"

torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other


@pytest.fixture
def analysis(monkeypatch):
    """Imports a module of research/analysis, or of a folder in it, by name."""
    for folder in (ANALYSIS / "copying", ANALYSIS / "long", ANALYSIS):
        monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module
