"""The notebooks among the pages: executed by a kernel as Jupyter does, they show what their pages show."""

import os
from pathlib import Path

import nbformat
import pytest

from tests.repo.repository import ROOT, name

NOTEBOOKS = sorted(ROOT.glob("docs/**/*.ipynb"))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name)
def test_a_notebook_shows_what_its_page_shows(path, tmp_path, monkeypatch, generators):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebooks = generators("notebooks")
    executed = notebooks.read(path)
    notebooks.execute(executed, tmp_path)
    shown = notebooks.outputs(notebooks.read(path))
    assert any(shown), "its page has no outputs: python docs/notebooks.py NOTEBOOK"
    assert notebooks.outputs(executed) == shown


def test_every_notebook_has_a_page(generators):
    pages = {Path(page).with_suffix(".ipynb").as_posix() for page in generators("generate").NOTEBOOKS}
    assert pages == {name(path) for path in NOTEBOOKS}


def test_figures_are_compared_by_their_signs_alone(generators):
    notebooks = generators("notebooks")
    table = {"data": {"text/html": "<table><td>1,204 tokens/s, 1.2e-16</td></table>"}}
    text = {"text": "a    1.25x  |-----|"}
    shown = notebooks.outputs(nbformat.from_dict({"cells": [{"cell_type": "code", "outputs": [table, text]}]}))
    assert shown == [['<div class="output"><table><td># tokens/s, #</td></table></div>', "```text\na #x |-|\n```"]]
