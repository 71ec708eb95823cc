"""Offers of targets beyond `Target`: everything of a model of transformers, and defaults for any other."""

from types import SimpleNamespace

import pytest
import torch

from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import tiny_llama
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import text_of


def test_a_model_of_transformers_offers_all_of_it():
    target = HFTarget.from_model(tiny_llama(11, 0))
    found = text_of(target)
    assert found.device == target.device and found.model is target.model and found.computing is target.computing
    assert found.fingerprint() == target.fingerprint() is not None
    assert isinstance(twin := found.sibling(), HFTarget) and twin is not target and twin.model is target.model
    assert isinstance(full := found.full(), HFTarget) and full is not target and full.model is target.model
    assert found.choose == target.choose and found.read_ahead == target.read_ahead
    assert found.image_tokens == target.image_tokens == frozenset() and found.processor is not None


def test_another_target_has_defaults():
    found = text_of(SimpleNamespace(vocab_size=3, context=8))
    assert (found.device, found.tokenizer, found.model, found.gguf, found.computing) == (None,) * 5
    assert not found.ends and found.fingerprint() is None and found.sibling() is None
    assert not found.image_tokens and found.processor is None and found.read_ahead is None


def test_another_target_scores_and_reads_texts():
    target = TableTarget(vocab=3)
    found = text_of(target)
    assert found.choose == target.score and found.full() is target
    found.require_inputs({})
    with pytest.raises(InputError, match="reads texts alone"):
        found.require_inputs({"pixel_values": torch.zeros(1)})


def test_a_target_may_offer_a_part():
    found = text_of(SimpleNamespace(vocab_size=3, ends=frozenset({2}), tokenizer="words"))
    assert (found.ends, found.tokenizer, found.device) == (frozenset({2}), "words", None)
