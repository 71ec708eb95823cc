"""A checkpoint's own generation settings: one line names those that a recipe does not use."""

import logging

import pytest
import torch
from transformers import GenerationConfig

import specframe
from tests.small_model import make_model


def lines(caplog, config, sampling=None, use=None):
    model = make_model()
    model.generation_config = GenerationConfig(**config)
    with caplog.at_level(logging.WARNING, "specframe"):
        (use or (lambda model: specframe.compose(target=model, sampling=sampling)))(model)
    return [record.getMessage() for record in caplog.records]


QWEN = {"repetition_penalty": 1.1, "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "pad_token_id": 0}


@pytest.mark.parametrize(
    ("config", "sampling", "named"),
    [
        (QWEN, None, "repetition_penalty=1.1, do_sample=True, temperature=0.7, top_k=20, top_p=0.8,"),
        (QWEN, {"temperature": 0.0}, "asks for repetition_penalty=1.1, which"),
        ({"no_repeat_ngram_size": 3}, None, "asks for no_repeat_ngram_size=3, which"),
        ({"min_new_tokens": 2, "suppress_tokens": [4]}, {}, "min_new_tokens=2, suppress_tokens=[4], which"),
    ],
)
def test_one_line_names_what_is_not_used(caplog, config, sampling, named):
    (line,) = lines(caplog, config, sampling)
    assert named in line and "\n" not in line


@pytest.mark.parametrize(
    ("config", "sampling"),
    [
        ({"eos_token_id": [1], "pad_token_id": 0, "bos_token_id": 1}, None),
        ({"repetition_penalty": 1.0, "do_sample": False, "top_k": 50}, None),
        ({"do_sample": True, "temperature": 0.7}, {"temperature": 0.5}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ],
)
def test_nothing_is_reported_where_nothing_is_lost(caplog, config, sampling):
    assert lines(caplog, config, sampling) == []


def test_a_loop_in_generate_uses_the_models_settings_and_reports_nothing(caplog):
    ids, options = torch.tensor([[15, 16, 17]]), {"max_new_tokens": 5, "do_sample": False}

    def use(model):
        wanted = model.generate(ids, **options)
        loop = specframe.decoder("lookup")
        assert model.generate(ids, custom_generate=loop, **options).tolist() == wanted.tolist()

    assert not [line for line in lines(caplog, {"repetition_penalty": 1.7}, use=use) if "not used" in line]
