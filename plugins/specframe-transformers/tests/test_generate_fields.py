"""Every argument of transformers' `generate` that may change tokens: the same tokens with our loop, or a refusal."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from generate_values import EFFECTIVE, GREEDY, REFUSED, SAMPLED
from transformers import GenerationConfig
from transformers.generation import (
    EosTokenCriteria,
    GenerationMixin,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    TopPLogitsWarper,
)

import specframe
from specframe.decoding.requests import pad
from specframe.kernel.errors import InputError
from specframe.kernel.types import TokenTree
from specframe.neural.cache import cache_name
from specframe.sampling.laws import History
from specframe_transformers.processors import row_samplings
from specframe_transformers.support import ARGUMENTS, FIELDS, FORWARD, unknown_fields

COUNT = 16
ONE = [[15, 16, 17, 15, 16]]
THREE = [[15, 16, 17, 15, 16], [9, 8, 7], [22, 23, 22, 23]]


@pytest.fixture(scope="module")
def loop(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "lookup.yaml"
    path.write_text("target: {use: hf, model: none}\ndrafter: {use: lookup}\nverifier: {use: match}\n")
    return specframe.decoder(path)


def left_padded(rows: list[list[int]]) -> dict[str, Any]:
    width = max(map(len, rows))
    tokens = torch.tensor([[2] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return {"inputs": tokens, "attention_mask": mask}


def call(rows: list[list[int]], **options: Any) -> dict[str, Any]:
    return left_padded(rows) | {"max_new_tokens": COUNT, "do_sample": False, "pad_token_id": 2} | options


def skip_unknown(options: dict[str, Any]) -> None:
    if missing := options.keys() - vars(GenerationConfig()).keys():
        pytest.skip(f"this transformers has no {', '.join(sorted(missing))}")


def cases(table: dict[str, list[dict[str, Any]]]) -> list[Any]:
    return [
        pytest.param(name, options, id=f"{name}-{number}")
        for name, all_of in table.items()
        for number, options in enumerate(all_of)
    ]


def test_every_field_of_the_installed_transformers_is_in_the_list():
    assert unknown_fields(GenerationConfig) == frozenset()


def test_every_argument_of_the_installed_generate_is_in_the_list():
    parameters = inspect.signature(GenerationMixin.generate).parameters
    assert parameters.keys() - {"self", "kwargs"} <= ARGUMENTS.keys()


def test_every_field_of_the_list_is_tried():
    special = {"stop_strings"}  # below: it needs a tokenizer
    assert FIELDS.keys() == GREEDY.keys() | SAMPLED.keys() | REFUSED.keys() | special
    assert {name for name, support in FIELDS.items() if support.refuses} == REFUSED.keys()


@pytest.fixture(scope="module")
def plain(model):
    return model.generate(**call(THREE)).tolist()


@pytest.mark.sampled
@pytest.mark.parametrize("rows", [ONE, THREE], ids=["one", "three"])
@pytest.mark.parametrize(("name", "options"), cases(GREEDY))
def test_greedy_tokens_are_those_of_generate(name, options, rows, model, loop, plain):
    skip_unknown(options)
    given = call(rows, **options)
    theirs = model.generate(**given)
    ours = model.generate(**given, custom_generate=loop)
    if options.get("return_dict_in_generate"):
        theirs, ours = theirs.sequences, ours.sequences
    assert ours.tolist() == theirs.tolist()
    assert rows is ONE or (theirs.tolist() != plain) == (name in EFFECTIVE), "the value tries nothing"


@pytest.mark.parametrize("rows", [ONE, THREE], ids=["one", "three"])
@pytest.mark.parametrize(("name", "options"), cases(SAMPLED))
def test_sampled_distributions_are_those_of_generate(name, options, rows, model):
    """At every step of a text that `generate` sampled, our law is the softmax of its processed scores."""
    skip_unknown(options)
    taken = {}

    def take(model, input_ids, logits_processor, stopping_criteria, generation_config, **inputs):
        mask = inputs.get("attention_mask")
        padding = [0] * len(input_ids) if mask is None else (mask == 0).sum(1).tolist()
        taken["rows"] = [row[skipped:] for row, skipped in zip(input_ids.tolist(), padding, strict=True)]
        taken["samplings"] = row_samplings(list(logits_processor), input_ids, padding, True)
        return input_ids

    given = call(rows, **{"do_sample": True, **options})
    torch.manual_seed(3)
    model.generate(**given, custom_generate=take)
    theirs = model.generate(**given, return_dict_in_generate=True, output_scores=True, output_logits=True)
    new = theirs.sequences[:, given["inputs"].shape[1] :]
    assert len(new) == len(taken["rows"]) == len(rows) * options.get("num_return_sequences", 1)
    for row, (prompt, sampling) in enumerate(zip(taken["rows"], taken["samplings"], strict=True)):
        for step in range(new.shape[1]):
            history = History(*pad([prompt + new[row, :step].tolist()]))
            logits = theirs.logits[step][row][None, None].double()
            law = sampling.following(history).law(logits, TokenTree.root_only(history.tokens[:, -1]))
            wanted = theirs.scores[step][row].softmax(-1)
            torch.testing.assert_close(law[0, 0].float(), wanted, rtol=1e-4, atol=1e-6)
            if new[row, step] == model.generation_config.eos_token_id:
                break


def test_sampling_decodes_each_of_several_sequences_of_a_prompt(model, loop):
    given = call(THREE, do_sample=True, num_return_sequences=2, temperature=3.0, encoder_repetition_penalty=2.0)
    torch.manual_seed(0)
    ours = model.generate(**given, custom_generate=loop)
    assert len(ours) == 6
    assert ours[0].tolist() != ours[1].tolist()


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_cannot_be_exact_is_refused_by_a_sentence(name, model, loop):
    skip_unknown(REFUSED[name])
    try:
        model.generate(**call(ONE), **REFUSED[name], custom_generate=loop)
    except InputError as error:
        assert str(error).startswith(f"{name} cannot be used") or name == "num_beam_groups"
        assert "\n" not in str(error)
    except ImportError:
        assert name == "cache_implementation"  # transformers misses the package before we are asked
    else:
        pytest.fail(f"{name} was not refused")


def test_a_field_that_a_later_transformers_may_add_is_refused_when_set(model, loop, monkeypatch):
    original = GenerationConfig.__init__

    def grown(self, **options):
        self.brand_new = options.pop("brand_new", None)
        original(self, **options)

    monkeypatch.setattr(GenerationConfig, "__init__", grown)
    assert unknown_fields(GenerationConfig) == {"brand_new"}, "the test of the installed release would fail"
    model.generate(**call(ONE), custom_generate=loop)
    with pytest.raises(InputError, match="brand_new is a setting of this transformers release that"):
        model.generate(**call(ONE), brand_new=3, custom_generate=loop)


@pytest.mark.parametrize("flag", ["output_scores", "output_logits", "output_attentions", "output_hidden_states"])
def test_outputs_of_single_steps_are_refused(flag, model, loop):
    with pytest.raises(InputError, match=f"{flag} cannot be used"):
        model.generate(**call(ONE), return_dict_in_generate=True, **{flag: True}, custom_generate=loop)


class Recorder:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        self.calls.append(value.tolist())

    def end(self) -> None:
        self.calls.append("end")


class AfterToken(StoppingCriteria):
    """Ends a row at its second 16 or 23."""

    def __call__(self, input_ids, scores, **options):
        return ((input_ids == 16) | (input_ids == 23)).sum(1) >= 3


def spell(row: int, text: torch.Tensor) -> list[int]:
    """Row-dependent, without an answer for a text that it did not allow."""
    last = int(text[-1])
    if last % 7 == 5 and row == 0 and len(text) > 6:
        raise LookupError("never allowed")
    return [token for token in range(64) if token % 7 != 5 and (token + row + last) % 3]


BY_ARGUMENT: dict[str, Any] = {
    "prefix_allowed_tokens_fn": spell,
    "logits_processor": [TopPLogitsWarper(0.5, min_tokens_to_keep=3)],
    "stopping_criteria": StoppingCriteriaList([AfterToken()]),
    "negative_prompt_ids": torch.tensor([[5, 6]]),
    "negative_prompt_attention_mask": torch.tensor([[1, 1]]),
    "synced_gpus": False,
    "generation_config": GenerationConfig(repetition_penalty=1.5, eos_token_id=1),
}


@pytest.mark.parametrize("rows", [ONE, THREE], ids=["one", "three"])
@pytest.mark.parametrize("name", sorted(BY_ARGUMENT))
def test_arguments_of_generate_work(name, rows, model, loop):
    given = call(rows, **{name: BY_ARGUMENT[name]})
    assert model.generate(**given, custom_generate=loop).tolist() == model.generate(**given).tolist()


@pytest.mark.parametrize("rows", [ONE, THREE], ids=["one", "three"])
@pytest.mark.parametrize("eos", [1, 16, None])
def test_streamers_get_what_generate_gives_them(eos, rows, model, loop):
    theirs, ours = Recorder(), Recorder()
    model.generate(**call(rows, eos_token_id=eos), streamer=theirs)
    model.generate(**call(rows, eos_token_id=eos), streamer=ours, custom_generate=loop)
    assert ours.calls == theirs.calls
    assert len(ours.calls) > 3


@pytest.mark.parametrize("rows", [ONE, THREE], ids=["one", "three"])
@pytest.mark.parametrize("eos", [1, None])
def test_stop_strings_are_read_by_the_tokenizer_of_the_call(eos, rows, model, loop, tokenizer):
    """Without an end-of-sequence token, `generate` goes on writing all rows until the last one has ended."""
    plain = model.generate(**call(rows, eos_token_id=None))
    width = max(map(len, rows))
    stop = [tokenizer.decode(row[width + 2 + 3 * number : width + 4 + 3 * number]) for number, row in enumerate(plain)]
    theirs, ours = Recorder(), Recorder()
    given = call(rows, eos_token_id=eos, stop_strings=stop, tokenizer=tokenizer)
    wanted = model.generate(**given, streamer=theirs)
    found = model.generate(**given, streamer=ours, custom_generate=loop)
    assert found.tolist() == wanted.tolist()
    assert ours.calls == theirs.calls
    assert wanted.shape[1] < width + COUNT or len(rows) > 1


def test_stop_strings_without_a_tokenizer_are_refused(model, loop):
    with pytest.raises(InputError, match="give it to generate as `tokenizer`"):
        model.generate(**call(ONE), stop_strings="x", custom_generate=loop)


def test_criteria_given_by_hand_take_the_place_of_the_configs(model, loop):
    criteria = StoppingCriteriaList([MaxLengthCriteria(9), EosTokenCriteria(16)])
    given = call(THREE, stopping_criteria=criteria)
    assert model.generate(**given, custom_generate=loop).tolist() == model.generate(**given).tolist()


def test_without_a_prompt_it_begins_with_bos(model, loop):
    given = {"bos_token_id": 3, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 2}
    assert model.generate(**given, custom_generate=loop).tolist() == model.generate(**given).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"synced_gpus": True}, "synced_gpus cannot be used"),
        ({"assistant_model": torch.nn.Linear(1, 1)}, "assistant_model cannot be used"),
        ({"inputs_embeds": torch.zeros(1, 5, 32, dtype=torch.float64)}, "inputs_embeds cannot be used"),
        ({"output_router_logits": True}, "output_router_logits"),
        ({"attention_mask": torch.tensor([[1, 1, 1, 1, 0]])}, "put the padding on the left"),
        ({"attention_mask": torch.tensor([[1, 0, 1, 1, 1]])}, "put the padding on the left"),
        ({"position_ids": torch.tensor([[3, 4, 5, 6, 7]])}, "do not count from the first token"),
    ],
)
def test_arguments_that_cannot_be_honoured_are_refused(options, message, model, loop):
    with pytest.raises((InputError, ValueError), match=message):
        model.generate(**(call(ONE) | options), custom_generate=loop)


def test_a_filled_cache_is_refused(model, loop):
    name = cache_name(model)
    cache = getattr(model(torch.tensor([ONE[0][:3]]), use_cache=True), name)
    with pytest.raises(InputError, match=f"{name} cannot be used"):
        model.generate(**call(ONE), **{name: cache}, custom_generate=loop)


def test_what_the_forward_pass_is_given_is_known(model, loop):
    seen = {}

    def look(model, input_ids, **inputs):
        seen.update(inputs)
        return input_ids

    model.generate(**call(THREE), custom_generate=look)
    assert seen.keys() - {"logits_processor", "stopping_criteria", "generation_config"} <= FORWARD
