"""Offers of targets beyond `Target`: everything of a model of transformers, and defaults for any other."""

from types import SimpleNamespace

from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import tiny_llama
from specframe.kernel.interfaces import TextTarget, text_of


def test_a_model_of_transformers_offers_all_of_it():
    target = HFTarget.from_model(tiny_llama(11, 0))
    assert isinstance(target, TextTarget)
    found = text_of(target)
    assert found.device == target.device and found.model is target.model and found.computing is target.computing
    assert found.fingerprint() == target.fingerprint() is not None
    assert isinstance(twin := found.sibling(), HFTarget) and twin is not target and twin.model is target.model


def test_another_target_has_defaults():
    found = text_of(SimpleNamespace(vocab_size=3, context=8))
    assert (found.device, found.tokenizer, found.model, found.gguf, found.computing) == (None,) * 5
    assert not found.ends and found.fingerprint() is None and found.sibling() is None


def test_a_target_may_offer_a_part():
    found = text_of(SimpleNamespace(vocab_size=3, ends=frozenset({2}), tokenizer="words"))
    assert (found.ends, found.tokenizer, found.device) == (frozenset({2}), "words", None)
