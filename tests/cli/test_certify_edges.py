"""Reports of `certify` on weights that it does not load, and on parts that have no form for a small vocabulary."""

import json

import pytest

from specframe.cli.main import main

EAGLE = (
    "target: {use: hf, model: zoo://talk-7m}\n"
    "drafter: {use: model, model: zoo://talk-7m}\n"
    "tree: {use: chain, depth: 1}\n"
    "verifier: match\n"
)
TWO = '''
import torch
from specframe.plugin import Draw, Promise, TokenTree


class Two:
    """Drafts by a table that another model was asked for."""

    taps = frozenset()
    promise = Promise(frozenset({Draw.TOP}), 2, 1)

    def bind(self, target):
        self.table = torch.nn.Embedding(2, 4)

    def open(self, slots, room):
        pass

    def commit(self, committed):
        pass

    def keep(self, rows):
        pass

    def propose(self, root, tree, context):
        best = self.table(root + 5).argmax(-1)  # the line at fault
        return TokenTree.of(best)
'''


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(EAGLE, encoding="utf-8")
    return path


def test_a_folder_that_does_not_exist_is_refused_before_anything_runs(recipe, tmp_path, capsys):
    missing = tmp_path / "nowhere"
    assert main(["certify", str(recipe), f"drafter.weights={missing}", "--exact-only"]) == 2
    error = capsys.readouterr().err
    assert f"drafter.weights: there is no folder {missing}" in error and len(error.splitlines()) == 1


def test_weights_that_are_not_loaded_are_named(recipe, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    words = ["certify", str(recipe), f"drafter.weights={tmp_path / 'empty'}", "--exact-only", "--budget", "300"]
    main(words)
    output = " ".join(capsys.readouterr().out.split())
    assert "the weights were not loaded" in output
    main([*words, "--json"])
    assert json.loads(capsys.readouterr().out)["weights_unread"] == [str(tmp_path / "empty")]


def test_a_part_without_a_small_form_is_reported_at_its_own_line(recipe, tmp_path, capsys):
    (tmp_path / "two.py").write_text(TWO, encoding="utf-8")
    line = 1 + TWO.splitlines().index(next(line for line in TWO.splitlines() if "at fault" in line))
    recipe.write_text(EAGLE.replace("{use: model, model: zoo://talk-7m}", "./two.py:Two").replace("tree:", "#"))
    assert main(["certify", str(recipe), "--exact-only"]) == 2
    error = capsys.readouterr().err
    assert f"two.py:{line}: IndexError" in error
    assert "Untrained" in error and "Shrinkable" in error and len(error.splitlines()) == 1
