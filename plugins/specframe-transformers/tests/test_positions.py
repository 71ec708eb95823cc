"""Beyond a config's `max_position_embeddings`: the text of `generate`, or a sentence that names `context`."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import specframe
from specframe import InputError, SpecframeError

PROMPT = torch.tensor([[15, 16, 17, 18, 15, 16]])
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
HALF = [1.0] * 4
LONG = {"short_factor": HALF, "long_factor": [2.0] * 4, "original_max_position_embeddings": 16}


def llama(kind, **fields):
    """A random Llama of 32 positions, whose texts depend on far tokens."""
    rope = {"rope_type": kind, "rope_theta": 10000.0, **({} if kind == "default" else {"factor": 2.0}), **fields}
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(3)
    model = LlamaForCausalLM(
        LlamaConfig(**sizes, **heads, max_position_embeddings=32, rope_parameters=rope, initializer_range=0.3)
    )
    return model.double().eval()


def call(new=60):
    return {
        "inputs": PROMPT,
        "attention_mask": torch.ones_like(PROMPT),
        "max_new_tokens": new,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
    }


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("default", {}),
        ("linear", {}),
        ("llama3", LLAMA3),
        ("yarn", {"original_max_position_embeddings": 16}),
    ],
)
@pytest.mark.parametrize("drafter", ["lookup", "recycling"])
def test_texts_go_on_as_those_of_generate(kind, fields, drafter):
    model = llama(kind, **fields)
    expected = model.generate(**call())
    assert model.generate(**call(), custom_generate=specframe.decoder(drafter)).tolist() == expected.tolist()


@pytest.mark.parametrize(("kind", "fields"), [("dynamic", {}), ("longrope", LONG)])
@pytest.mark.parametrize("length", [6, 40])
def test_rotations_that_change_with_the_text_are_refused_by_name(kind, fields, length):
    model = llama(kind, **fields)
    given = call() | {"inputs": torch.arange(length)[None] + 2, "attention_mask": torch.ones(1, length)}
    with pytest.raises(SpecframeError, match="`context`"):
        model.generate(**given, custom_generate=specframe.decoder("lookup"))
    with pytest.raises(InputError, match="its `context` cannot be 90; yarn or linear scaling can"):
        model.generate(**given, custom_generate=specframe.decoder("lookup", overrides=["target.context=90"]))


def test_a_table_of_positions_ends():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4)).eval()
    with pytest.raises(InputError, match=r"has reached the model's context of 32 tokens .* a larger `context`"):
        model.generate(**call(), custom_generate=specframe.decoder("lookup"))
    with pytest.raises(InputError, match="has a table of 32 positions, and no row can take 90"):
        model.generate(**call(), custom_generate=specframe.decoder("lookup", overrides=["target.context=90"]))


def test_a_recipes_context_is_kept():
    model = llama("default")
    with pytest.raises(InputError, match="has reached the model's context of 40 tokens"):
        model.generate(**call(), custom_generate=specframe.decoder("lookup", overrides=["target.context=40"]))
