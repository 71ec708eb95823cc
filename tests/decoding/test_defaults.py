"""A checkpoint's own generation settings: bans and penalties are taken over, and one line names those and the rest."""

import json
import logging

import pytest
import torch
from transformers import GenerationConfig

import specframe
from specframe.cli.main import main
from specframe.decoding.settings import SamplingSettings
from tests.small_model import make_model, make_tokenizer

PROMPT = [15, 16, 17, 15, 16]
QWEN = {"repetition_penalty": 1.1, "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "pad_token_id": 0}


def model_of(config):
    model = make_model()
    model.generation_config = GenerationConfig(**config)
    return model


def lines(caplog, config, sampling=None, use=None):
    model = model_of(config)
    with caplog.at_level(logging.WARNING, "specframe"):
        (use or (lambda model: specframe.compose(target=model, sampling=sampling)))(model)
    return [record.getMessage() for record in caplog.records if record.name.startswith("specframe")]


@pytest.mark.parametrize(
    "config",
    [
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"suppress_tokens": [4, 9, 20]},
        {"begin_suppress_tokens": [4, 9, 20]},
        {"bad_words_ids": [[4], [9, 20]]},
        {"min_new_tokens": 9},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "suppress_tokens": [4]},
    ],
    ids=lambda config: "+".join(config),
)
@pytest.mark.parametrize("drafter", ["none", "lookup"])
def test_greedy_texts_are_those_of_generate_by_the_checkpoints_own_config(config, drafter):
    plain = specframe.compose(target=make_model()).generate(PROMPT, max_new_tokens=20).tokens[0]
    if "suppress_tokens" in config or "begin_suppress_tokens" in config:
        config = {name: [*plain[:2]] if name.endswith("suppress_tokens") else value for name, value in config.items()}
    if "bad_words_ids" in config:
        config = {"bad_words_ids": [[plain[0]], plain[1:3]]}
    model = model_of(config | {"pad_token_id": 0, "eos_token_id": plain[3] if "min_new_tokens" in config else 1})
    expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False)[0, len(PROMPT) :].tolist()
    pipeline = specframe.compose(target=model, drafter=drafter)
    assert pipeline.generate(PROMPT, max_new_tokens=20).tokens[0] == expected != plain
    assert pipeline.plain().generate(PROMPT, max_new_tokens=20).tokens[0] == expected


def test_what_a_recipe_names_is_its_own():
    config = {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2}
    named = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
    plain = specframe.compose(target=make_model()).generate(PROMPT, max_new_tokens=20).tokens
    for sampling in (named, SamplingSettings()):
        pipeline = specframe.compose(target=model_of(config), sampling=sampling)
        assert pipeline.generate(PROMPT, max_new_tokens=20).tokens == plain
    half = specframe.compose(target=model_of(config), sampling={"repetition_penalty": 1.0})
    assert (half.sampling.repetition_penalty, half.sampling.no_repeat_ngram_size) == (1.0, 2)


@pytest.mark.parametrize(
    ("config", "sampling", "taken", "left"),
    [
        (QWEN, None, ["repetition_penalty=1.1"], ["do_sample=True", "temperature=0.7", "top_k=20", "top_p=0.8"]),
        (QWEN, {"temperature": 0.0}, ["repetition_penalty=1.1"], []),
        (QWEN, SamplingSettings(), [], []),
        ({"no_repeat_ngram_size": 3}, None, ["no_repeat_ngram_size=3"], []),
        ({"min_new_tokens": 2, "suppress_tokens": [4]}, {}, ["min_new_tokens=2", "suppress_tokens=[4]"], []),
        ({"forced_eos_token_id": 1}, None, [], ["forced_eos_token_id=1"]),
        ({"min_length": 9, "num_beams": 2, "typical_p": 0.5}, {}, [], ["min_length=9", "typical_p=0.5", "num_beams=2"]),
        ({"stop_strings": ["a"], "sequence_bias": [[[4], 1.0]]}, {}, [], ["sequence_bias=", "stop_strings=['a']"]),
    ],
)
def test_one_line_names_what_is_taken_over_and_what_is_not_used(caplog, config, sampling, taken, left):
    found = lines(caplog, config, sampling)
    if not taken and not left:
        assert found == []
        return
    (line,) = found
    assert "\n" not in line and ("is taken over" in line) == bool(taken) and ("is not used" in line) == bool(left)
    before, _, after = line.partition("is taken over" if taken else "asks for")
    assert all(each in before for each in taken) and all(each in after for each in left)


@pytest.mark.parametrize(
    ("config", "sampling"),
    [
        ({"eos_token_id": [1], "pad_token_id": 0, "bos_token_id": 1}, None),
        ({"repetition_penalty": 1.0, "do_sample": False, "top_k": 50, "suppress_tokens": []}, None),
        ({"do_sample": True, "temperature": 0.7}, {"temperature": 0.5}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ],
)
def test_nothing_is_reported_where_nothing_is_lost(caplog, config, sampling):
    assert lines(caplog, config, sampling) == []


def test_a_run_records_where_a_setting_comes_from(tmp_path, capsys, caplog):
    model = model_of({"repetition_penalty": 1.7})
    model.save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    words = ["run.prompts=[[15, 16, 17]]", "run.chat=false", "run.costs=null", "run.repeats=1", "--json"]
    command = ["run", str(tmp_path / "model"), *words, "sampling.max_new_tokens=12", "target.native=false"]
    assert main([*command, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert caplog.text.count("repetition_penalty=1.7, which is taken over") == 1
    caplog.clear()
    assert json.loads(printed.out)["identical_to_generate"] is True
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["recipe"]["data"]["sampling"]["repetition_penalty"] == 1.7
    assert record["origins"]["sampling.repetition_penalty"] == "the checkpoint's generation_config.json"
    assert main([*command, "sampling.repetition_penalty=1", "--out", str(tmp_path / "plain")]) == 0
    other = capsys.readouterr()
    assert "taken over" not in caplog.text and json.loads(other.out)["text"] != json.loads(printed.out)["text"]


def test_a_loop_in_generate_uses_the_models_settings_and_reports_nothing(caplog):
    ids, options = torch.tensor([[15, 16, 17]]), {"max_new_tokens": 5, "do_sample": False}

    def use(model):
        wanted = model.generate(ids, **options)
        loop = specframe.decoder("lookup")
        assert model.generate(ids, custom_generate=loop, **options).tolist() == wanted.tolist()

    assert not [line for line in lines(caplog, {"repetition_penalty": 1.7}, use=use) if "generation config" in line]
