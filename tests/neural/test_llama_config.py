"""Configs that are imported fast are transformers' own, but for their class."""

from __future__ import annotations

import copy
import json

import pytest
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast

from specframe.components.targets.loading import find_config
from specframe.components.targets.source import ModelSource
from specframe.components.targets.tokenizer import has_fast_tokenizer
from specframe.neural.layer import complete_config, light_config, make_config
from specframe.recipes.zoo import model_folder

LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
VALUES = {
    "nothing": {},
    "sizes": {"hidden_size": 128, "num_attention_heads": 4, "rope_theta": 1e6, "vocab_size": 99, "unknown": 3},
    "window": {"use_sliding_window": True, "max_window_layers": 2, "num_hidden_layers": 4, "sliding_window": 64},
    "rope": {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 1024}},
    "older rope": {"rope_scaling": {"type": "linear", "factor": 2.0}, "num_key_value_heads": None},
    "ends": {"eos_token_id": [3, 4], "bos_token_id": None, "tie_word_embeddings": True, "dtype": "bfloat16"},
}


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_fast_config_is_transformers(kind, values):
    found, wanted = make_config(kind, **values), AutoConfig.for_model(kind, **copy.deepcopy(values))
    assert type(found) is light_config(kind) is not type(wanted)
    for read in (vars, str, lambda config: config.to_dict(), lambda config: config.to_diff_dict()):
        assert read(found) == read(wanted)
    complete = complete_config(found)
    assert complete is found and type(found) is type(wanted) and vars(found) == vars(wanted)


def test_a_fast_config_has_all_fields_of_this_release():
    for kind in ("llama", "qwen2"):
        own, other = (vars(type(config)()) for config in (make_config(kind), AutoConfig.for_model(kind)))
        assert own == other


@pytest.mark.parametrize(
    "values",
    [{"hidden_size": "wide"}, {"hidden_size": 100, "num_attention_heads": 3}, {"initializer_range": 7.0}],
    ids=["type", "heads", "range"],
)
def test_what_transformers_refuses_is_refused_in_its_words(values):
    with pytest.raises(Exception) as wanted:  # of transformers' own kinds
        AutoConfig.for_model("llama", **values)
    with pytest.raises(wanted.type) as found:
        make_config("llama", **values)
    assert str(found.value) == str(wanted.value)


def test_a_folders_config_and_tokenizer_are_those_of_transformers(tmp_path):
    folder = model_folder("talk-7m")
    found, wanted = find_config("it", ModelSource.of(folder)), AutoConfig.from_pretrained(folder)
    assert type(found) is light_config("llama") and vars(found) == vars(wanted)
    assert has_fast_tokenizer(folder)
    ours, theirs = PreTrainedTokenizerFast.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert type(ours) is type(theirs) and str(ours.init_kwargs) == str(theirs.init_kwargs)
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()
    assert ours.chat_template == theirs.chat_template and ours.special_tokens_map == theirs.special_tokens_map
    turns = [{"role": "user", "content": "Two words."}]
    assert ours.apply_chat_template(turns) == theirs.apply_chat_template(turns)
    for name, changes in (("config.json", {"model_type": "qwen2"}), ("tokenizer_config.json", {"auto_map": {}})):
        for file in folder.iterdir():
            if file.suffix == ".json":
                (tmp_path / file.name).write_bytes(file.read_bytes())
        assert has_fast_tokenizer(tmp_path)
        (tmp_path / name).write_text(json.dumps(json.loads((tmp_path / name).read_text()) | changes))
        assert not has_fast_tokenizer(tmp_path)
