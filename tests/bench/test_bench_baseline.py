"""`generate` as the yardstick: it decodes by the recipe's sampling and by nothing that the model's files ask for."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from specframe.bench.contest.generation import Generate, GenerateCompiled, PromptLookup
from specframe.bench.contest.own import Plain
from specframe.components.targets.hf import HFTarget
from specframe.decoding.baseline import generate_with_transformers
from specframe.decoding.settings import SamplingSettings
from tests.small_model import make_model

ROWS = [[5, 6, 7], [9, 9, 9, 9, 20]]
OPTIONS = {
    "repetition_penalty": 1.5,
    "no_repeat_ngram_size": 2,
    "suppress_tokens": list(range(10, 40)),
}


@pytest.fixture
def wishful():
    """A model whose generation config asks for more than its law, as Qwen2.5's does."""
    model = make_model()
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=2, **OPTIONS)
    return model


@pytest.mark.parametrize("option", OPTIONS)
def test_what_the_model_asks_for_would_change_the_output(wishful, option):
    plain = make_model()
    wishful.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=2, **{option: OPTIONS[option]})
    given = {"inputs": torch.tensor([ROWS[0]]), "max_new_tokens": 24}
    outputs = [model.generate(**given).tolist() for model in (wishful, plain)]
    assert outputs[0] != outputs[1]


def test_generate_decodes_by_the_settings_alone(wishful):
    settings, ends = SamplingSettings(max_new_tokens=24), frozenset({1})
    before = copy.deepcopy(wishful.generation_config.to_dict())
    contestant = Plain()
    contestant.prepare(HFTarget.from_model(wishful), settings, 2)
    ours = contestant.decode(ROWS, 0).tokens
    assert generate_with_transformers(wishful, ROWS, settings, ends) == ours
    assert [generate_with_transformers(wishful, [row], settings, ends)[0] for row in ROWS] == ours
    assert wishful.generation_config.to_dict() == before


def test_generate_ends_where_the_context_does():
    model = make_model()
    model.config.max_position_embeddings = 20
    model.generation_config = GenerationConfig(pad_token_id=2)
    settings = SamplingSettings(max_new_tokens=1000)
    contestant = Plain()
    contestant.prepare(HFTarget.from_model(model), settings, 2)
    ours = contestant.decode(ROWS, 0).tokens
    assert [len(row) + len(new) for row, new in zip(ROWS, ours, strict=True)] == [20] * len(ROWS)
    assert generate_with_transformers(model, ROWS, settings, frozenset()) == ours


def test_assisted_generation_does_so_too(wishful):
    settings = SamplingSettings(max_new_tokens=24)
    contestants = (Plain(), PromptLookup())
    for contestant in contestants:
        contestant.prepare(HFTarget.from_model(wishful), settings, 1)
    for row in ROWS:
        outputs = [contestant.decode([row], 0).tokens for contestant in contestants]
        assert outputs[0] == outputs[1]


def test_compiled_generation_is_compiled_once_for_all_prompts(wishful):
    torch._dynamo.reset()
    graphs = []

    def trace(graph, inputs):
        graphs.append(graph)
        return graph.forward

    contestants = (Generate(), GenerateCompiled(backend=trace))
    for contestant in contestants:
        contestant.prepare(HFTarget.from_model(wishful), SamplingSettings(max_new_tokens=12), 1)
    for row in ([5, 6, 7], [9, 9, 9, 9, 20], [30, 3, 31, 5]):
        outputs = [contestant.decode([row], 0).tokens for contestant in contestants]
        assert outputs[0] == outputs[1] and len(outputs[0][0]) > 4
        assert len(graphs) == 1


def test_sampling_is_the_settings_too(wishful):
    wishful.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=2, top_k=1, temperature=0.1, top_p=0.2)
    settings = SamplingSettings(max_new_tokens=4, temperature=1.0)
    found = set()
    for seed in range(20):
        torch.manual_seed(seed)
        found.add(tuple(generate_with_transformers(wishful, [ROWS[0]], settings, frozenset())[0]))
    assert len(found) > 5
