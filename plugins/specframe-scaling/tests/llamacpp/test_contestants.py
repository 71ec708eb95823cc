"""llama.cpp decodes a GGUF file as a quantized target does, and reports what it cannot do."""

from __future__ import annotations

import pytest

from specframe import CompositionError, InputError
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.decoding.settings import SamplingSettings
from specframe_scaling.llamacpp.contestants import LlamaCpp, LlamaCppNgram
from tests.small_gguf import VOCABULARY, write_gguf

PROMPT = [ord(letter) for letter in "a drab crab"]


@pytest.fixture
def target(tmp_path):
    return HFTarget(model=str(write_gguf(tmp_path / "small.gguf")), device="cpu", quantize="int8")


@pytest.mark.parametrize("contestant", [LlamaCpp, LlamaCppNgram])
def test_its_tokens_come_one_after_the_other(contestant, target):
    decoder = contestant()
    decoder.prepare(target, SamplingSettings(temperature=0.0, max_new_tokens=12, ignore_eos=True), 1)
    for _ in range(2):
        outcome = decoder.decode([PROMPT], seed=3)
        (tokens,), (times,) = outcome.tokens, outcome.arrivals
        assert 0 < len(tokens) == len(times) and all(0 <= token < VOCABULARY for token in tokens)
        assert list(times) == sorted(times)
        assert outcome.figures()[0]["predicted_n"] == 12


def test_a_target_without_a_file_is_refused():
    with pytest.raises(CompositionError, match="llamacpp decodes GGUF files, and the target has none"):
        LlamaCpp().prepare(TableTarget(), SamplingSettings(), 1)


def test_a_batch_is_refused(target):
    with pytest.raises(InputError, match="one prompt at a time"):
        LlamaCppNgram().prepare(target, SamplingSettings(), 2)
    for settings in ({"repetition_penalty": 1.1}, {"grammar": {"regex": "a"}}):
        with pytest.raises(InputError, match="knows no grammars, penalties"):
            LlamaCppNgram().prepare(target, SamplingSettings(**settings), 1)


def test_nothing_is_decoded_before_it_is_prepared():
    with pytest.raises(RuntimeError, match="prepared"):
        LlamaCpp().decode([PROMPT], 0)
