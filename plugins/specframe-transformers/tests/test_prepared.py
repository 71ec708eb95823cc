"""Models whose inputs are prepared by another: additions are refused, anything else gives its own texts."""

import copy

import pytest
import torch

import specframe
from specframe.kernel.errors import InputError

IDS = torch.tensor([[15, 16, 17, 15, 16]])
OPTIONS = {"max_new_tokens": 9, "do_sample": False}


def replaced(model, change):
    """The model with a replaced `prepare_inputs_for_generation`, as peft replaces it for the time of a call."""
    twin = copy.deepcopy(model)
    original = type(twin).prepare_inputs_for_generation

    def prepare(*args, **kwargs):
        return change(twin, original(twin, *args, **kwargs))

    twin.prepare_inputs_for_generation = prepare
    return twin


def prompt_tuned(model, inputs):
    """Virtual tokens before the first, as `PromptTuningConfig` has them."""
    if inputs.get("past_key_values") is None or inputs["past_key_values"].get_seq_length() == 0:
        embedded = model.get_input_embeddings()(inputs.pop("input_ids"))
        inputs["inputs_embeds"] = torch.cat([torch.ones(1, 4, embedded.shape[-1]).to(embedded), embedded], 1)
    return inputs


def shifted(model, inputs):
    inputs["position_ids"] = torch.arange(IDS.shape[1])[None] + 3
    return inputs


def prefixed(model, inputs):
    inputs["past_key_values"] = object()
    return inputs


def added(model, inputs):
    return inputs | {"task_ids": torch.ones(1)}


@pytest.mark.parametrize(
    ("change", "name"),
    [(prompt_tuned, "inputs_embeds"), (shifted, "position_ids"), (prefixed, "past_key_values"), (added, "task_ids")],
)
def test_added_inputs_are_refused(recipe, model, change, name):
    with pytest.raises(InputError, match=rf"makes inputs of its own for generation \(.*{name}.*\), as prompt tuning"):
        replaced(model, change).generate(IDS, custom_generate=specframe.decoder(recipe), **OPTIONS)


def test_a_replacement_that_adds_nothing_gives_generates_text(recipe, model):
    twin = replaced(model, lambda model, inputs: inputs)
    found = twin.generate(IDS, custom_generate=specframe.decoder(recipe), **OPTIONS)
    assert found.tolist() == model.generate(IDS, **OPTIONS).tolist()
