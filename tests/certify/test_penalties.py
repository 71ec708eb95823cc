"""Recipes with penalties are certified, and a loop that penalises every node of a draft by the root's text is not."""

import pytest
import torch

from specframe.certify.certify import certify_plan
from specframe.sampling.laws import Sampling
from tests.certify.recipes import COPIES, DRAWN, planned

PENALTIES = "frequency_penalty: 0.8, presence_penalty: -0.5"
SETTINGS = {
    "counting": PENALTIES,
    "repetition": "repetition_penalty: 2.0",
    "biases": "logit_bias: {40: 1.5, 7: -1}, min_new_tokens: 3",
    "bans": "no_repeat_ngram_size: 2, bad_words_ids: [[3, 4], [7, 7, 5]]",
}


def certified(folder, text, penalties, **parts):
    text = text.replace("TEMPERATURE}", f"TEMPERATURE, {penalties}}}")
    return certify_plan(planned(folder, text, "", **parts), budget=4000, seeds=1)


@pytest.mark.full
@pytest.mark.parametrize("name", SETTINGS)
def test_copied_drafts_under_penalties_are_lossless(name, tmp_path):
    found = certified(tmp_path, COPIES, SETTINGS[name], verifier="match", temperature=1.0)
    assert found.lossless and any("with penalties" in case.name for case in found.cases)


@pytest.mark.full
def test_drawn_drafts_under_penalties_are_lossless(tmp_path):
    parts = {"tree": "chain", "verifier": "recursive", "depth": 1, "temperature": 1.0}
    assert certified(tmp_path, DRAWN, PENALTIES, **parts).lossless


@pytest.mark.full
def test_a_greedy_recipe_with_penalties_is_lossless(tmp_path):
    assert certified(tmp_path, COPIES, PENALTIES, verifier="match", temperature=0.0).lossless


@pytest.mark.full
@pytest.mark.parametrize("name", ["counting", "repetition", "bans"])
def test_penalties_of_the_roots_text_at_every_node_are_refused(name, tmp_path, monkeypatch):
    own = Sampling._contexts

    def of_roots(self, tree, nodes):
        roots = torch.zeros_like(tree.tokens if nodes is None else nodes)
        return own(self, tree, roots)

    monkeypatch.setattr(Sampling, "_contexts", of_roots)
    found = certified(tmp_path, COPIES, SETTINGS[name], verifier="match", temperature=1.0)
    assert found.promised and not found.exact
