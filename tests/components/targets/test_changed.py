"""Targets whose weights are elsewhere, moved by accelerate, and targets that change between two sessions."""

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from torch import nn
from transformers import AutoModelForCausalLM

from specframe import compose
from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import CompositionError, InputError
from tests.small_model import make_model

PROMPT = [1, 2, 3, 4, 1, 2, 3]
LENGTH = 12
DRAFTERS = {
    "lookup": {"drafter": "lookup"},
    "suffix-recycling": {"drafter": "suffix-recycling"},
    "eagle": {"drafter": "eagle", "tree": "chain"},
    "medusa": {"drafter": "medusa", "tree": "chain"},
}
OWN = {"drafter": {"use": "self", "exit": 1}, "tree": "chain"}


def pipeline(model, parts):
    return compose(target=model.eval(), sampling={"max_new_tokens": LENGTH}, **parts)


def plain(model, prompt=PROMPT):
    text = model.generate(torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False, pad_token_id=0)
    return text[0, len(prompt) :].tolist()


@pytest.fixture
def load(tmp_path):
    make_model().save_pretrained(tmp_path / "model")

    def load(device_map=None):
        places = {} if device_map is None else {"device_map": device_map, "offload_folder": str(tmp_path / "off")}
        return AutoModelForCausalLM.from_pretrained(tmp_path / "model", **places)

    return load


def mixed(*moved):
    whole = [
        "model.embed_tokens",
        "model.norm",
        "model.rotary_emb",
        "lm_head",
        *(f"model.layers.{i}" for i in range(3)),
    ]
    return {name: "disk" if name.rpartition(".")[2] in moved else "cpu" for name in whole}


PLACES = {
    "all on disk": lambda load, tmp: load({"": "disk"}),
    "a layer on disk": lambda load, tmp: load(mixed("1")),
    "embedding and head on disk": lambda load, tmp: load(mixed("embed_tokens", "lm_head")),
    "all on the host": lambda load, tmp: cpu_offload(load(), torch.device("cpu")),
    "all on disk, later": lambda load, tmp: disk_offload(load(), str(tmp / "later"), torch.device("cpu")),
}


@pytest.mark.sampled
@pytest.mark.parametrize("place", PLACES)
def test_a_model_that_accelerate_moves_is_a_target(place, load, tmp_path):
    wanted, model = plain(load()), PLACES[place](load, tmp_path)
    for name, parts in DRAFTERS.items():
        decoding = pipeline(model, parts)
        assert [decoding.generate([PROMPT]).tokens[0] for _ in range(2)] == [wanted] * 2, name


def test_drafts_that_read_its_weights_are_one_line(load):
    model = load({"": "disk"})
    trimmed = {"use": "eagle", "head": {"use": "trimmed", "keep": 16}}
    for parts, message in (
        (OWN, "accelerate moves its weights in and out, for whole forward passes alone"),
        ({"drafter": trimmed, "tree": "chain"}, "accelerate keeps the LM head of llama elsewhere"),
    ):
        with pytest.raises(CompositionError, match=message) as caught:
            pipeline(model, parts)
        assert "\n" not in str(caught.value)


def test_a_model_without_weights_is_one_line():
    target = HFTarget.from_model(make_model().to("meta"))
    with pytest.raises(InputError, match="the target's weights are on the meta device, which holds none"):
        target.open(1, 16)


def replace_head(model):
    model.set_output_embeddings(
        linear := nn.Linear(model.config.hidden_size, model.config.vocab_size, bias=False, dtype=model.dtype)
    )
    nn.init.normal_(linear.weight, generator=torch.Generator().manual_seed(5))


def replace_embedding(model):
    model.set_input_embeddings(nn.Embedding(model.config.vocab_size, model.config.hidden_size, dtype=model.dtype))
    weight = model.get_input_embeddings().weight
    nn.init.normal_(weight, generator=torch.Generator().manual_seed(6))


def replace_norm(model):
    model.model.norm = nn.Sequential(model.model.norm, nn.Tanh())


@torch.no_grad()
def turn_head(model):
    model.lm_head.weight.mul_(-1)


@pytest.mark.sampled
@pytest.mark.parametrize("change", [replace_head, replace_embedding, replace_norm, turn_head])
@pytest.mark.parametrize("name", [*DRAFTERS, "own layers"])
def test_what_is_replaced_in_a_model_counts_from_the_next_text_on(name, change):
    model = make_model()
    decoding = pipeline(model, DRAFTERS.get(name, OWN))
    assert decoding.generate([PROMPT]).tokens[0] == (before := plain(model))
    change(model)
    assert decoding.generate([PROMPT]).tokens[0] == (after := plain(model))
    assert before != after


def test_the_head_that_drafters_share_is_the_models_of_now():
    target = HFTarget.from_model(model := make_model().eval())
    features = torch.randn(2, model.config.hidden_size, dtype=model.dtype)
    target.head(features)
    replace_head(model)
    target.open(1, 16)
    torch.testing.assert_close(target.head(features), model.lm_head(features))


CHANGES = {
    "tokens were added": lambda model: model.resize_token_embeddings(model.config.vocab_size + 6),
    "tokens were dropped": lambda model: model.resize_token_embeddings(model.config.vocab_size - 6),
    "another dtype": lambda model: model.bfloat16(),
    "fewer layers": lambda model: setattr(model.model, "layers", model.model.layers[:2]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["lookup", "medusa"])
def test_a_model_of_another_form_asks_for_another_pipeline(name, change):
    model = make_model()
    decoding = pipeline(model, DRAFTERS[name])
    decoding.generate([PROMPT])
    CHANGES[change](model)
    with pytest.raises(InputError, match=r"the model has changed since .*; compose the pipeline again") as caught:
        decoding.generate([PROMPT])
    assert "\n" not in str(caught.value)
    if change != "fewer layers":
        assert pipeline(model, DRAFTERS[name]).generate([PROMPT]).tokens[0] == plain(model)
