"""Checkpoints come back as they were; what does not fit is refused in one line that names what does."""

from __future__ import annotations

import json

import chimera_fakes as fakes
import pytest
import torch
from safetensors.torch import load_file, save_file

from specframe import CompositionError, InputError, WeightsError
from specframe.components.heads import FullHead
from specframe.components.rollouts.multi_step import MultiStep
from specframe.testing import GrowingTree
from specframe_chimera.drafter import Chimera


@pytest.mark.parametrize("options", [{}, {"residual": False, "ngram": 2, "heads": 2}, {"head": FullHead()}])
def test_a_saved_drafter_loads_and_gives_the_same(options, tmp_path):
    drafter = fakes.bound(**options)
    with torch.no_grad():
        for weight in drafter.module.parameters():
            weight.copy_(weight.bfloat16())  # as they are stored
    drafter.save(tmp_path)
    again = Chimera(weights=str(tmp_path), **options)
    again.bind(fakes.target())
    tokens = torch.randint(fakes.VOCAB, (1, 4 + again.levels))
    features = torch.randn(1, 5, fakes.SIZE, dtype=torch.float64)
    one, two = (each.unroll(features, tokens) for each in (drafter, again))
    assert torch.equal(one.features, two.features) and torch.equal(drafter.read(one), again.read(two))


@pytest.mark.parametrize("options", [{"heads": 0}, {"ngram": 0}, {"ngram": 6}, {"cache": -1}])
def test_options_out_of_range(options):
    with pytest.raises(InputError, match=next(iter(options))):
        Chimera(**options)


def test_what_is_no_neural_target(tmp_path):
    with pytest.raises(CompositionError, match="target hf"):
        Chimera().bind(object())
    with pytest.raises(CompositionError, match="bind"):
        Chimera().save(tmp_path)


def test_what_is_asked_for_too_early():
    with pytest.raises(CompositionError, match="before anything was committed"):
        fakes.bound().expand(GrowingTree(torch.zeros(1, dtype=torch.int64), fakes.VOCAB).frontier([0]))
    with pytest.raises(CompositionError, match="needs a tree policy"):
        fakes.bound().propose(torch.zeros(1, dtype=torch.int64), None, None)


def test_a_rollout_that_feeds_features_back():
    tokens = torch.zeros(1, 6, dtype=torch.int64)
    teacher = fakes.target().teach(tokens, tokens == 0)
    with pytest.raises(CompositionError, match="use the rollout all-levels"):
        MultiStep()(fakes.bound(), teacher, 0.0)


def test_a_checkpoint_of_another_shape_is_refused_in_full(tmp_path):
    fakes.bound(heads=2, ngram=2).save(tmp_path)
    with pytest.raises(WeightsError) as refusal:
        fakes.bound(residual=False, weights=str(tmp_path))
    for part in ("heads: the checkpoint has 2, needed is 4", "ngram", "residual"):
        assert part in str(refusal.value)
    (tmp_path / "config.json").write_text(json.dumps({"format": "falcon"}))
    with pytest.raises(WeightsError, match="has 'falcon', needed is 'chimera'"):
        fakes.bound(weights=str(tmp_path))


def test_tensors_that_do_not_fit_are_all_listed(tmp_path):
    fakes.bound().save(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    weights["odd.weight"] = weights.pop("ngrams.inner.bias")
    weights["ngrams.outer.weight"] = torch.zeros(3)
    save_file(weights, path)
    with pytest.raises(WeightsError) as refusal:
        fakes.bound(weights=str(tmp_path))
    for part in ("ngrams.inner.bias: missing", "odd.weight: unexpected", "ngrams.outer.weight: has shape [3]"):
        assert part in str(refusal.value)


def test_heads_with_lm_heads_of_their_own_do_not_share_one(tmp_path):
    fakes.bound().save(tmp_path)
    with pytest.raises(WeightsError, match="an LM head for every level"):
        fakes.bound(head=FullHead(), weights=str(tmp_path))
