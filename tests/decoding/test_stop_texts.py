"""Rows end at stop texts and stop tokens as transformers' `generate` ends them, special tokens' own texts included."""

import pytest
import torch

import specframe
from specframe.decoding.baseline import generate_with_transformers
from specframe.kernel.errors import InputError
from specframe.recipes.recipe import RecipeError
from tests.small_model import make_model, make_tokenizer

PROMPT = "hello"


@pytest.fixture(scope="module")
def model():
    return make_model().double()


def pipeline_of(model, tokenizer, **sampling):
    return specframe.compose(
        target=model, tokenizer=tokenizer, drafter="lookup", sampling={"max_new_tokens": 24, **sampling}
    )


def tokenizer_with(special):
    """The tokenizer, with this token of its vocabulary as a special one."""
    tokenizer = make_tokenizer()
    if special is not None:
        tokenizer.add_special_tokens({"additional_special_tokens": [tokenizer.convert_ids_to_tokens(special)]})
    return tokenizer


def late(tokens):
    """The place of a token that occurs late for the first time."""
    return max(place for place, token in enumerate(tokens) if token not in tokens[:place])


@pytest.mark.parametrize("special", [False, True])
def test_a_stop_text_ends_a_row_where_generates_does(model, special):
    plain = pipeline_of(model, make_tokenizer()).generate(PROMPT).tokens[0]
    token = plain[late(plain)]
    tokenizer = tokenizer_with(token if special else None)
    text = tokenizer.convert_ids_to_tokens(token)
    result = pipeline_of(model, tokenizer, stop=[text]).generate(PROMPT)
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"]])
    wanted = model.generate(ids, max_new_tokens=24, do_sample=False, stop_strings=[text], tokenizer=tokenizer)
    assert result.tokens[0] == wanted[0, ids.shape[1] :].tolist() == plain[: late(plain) + 1]
    assert result.ended == ["stop"]
    assert (text in result.texts[0]) != special


def test_stop_token_ids_end_a_row_as_further_ends(model):
    plain = pipeline_of(model, make_tokenizer()).generate(PROMPT).tokens[0]
    token = plain[late(plain)]
    pipeline = pipeline_of(model, make_tokenizer(), stop_token_ids=[token], ignore_eos=True)
    result = pipeline.generate(PROMPT)
    rows = [pipeline.encode(PROMPT)]
    assert result.tokens == generate_with_transformers(model, rows, pipeline.sampling, frozenset())
    assert result.tokens[0] == plain[: late(plain) + 1] and result.ended == ["end"]


def test_tokens_that_the_target_lacks_are_refused(model):
    with pytest.raises(InputError, match="outside the target's vocabulary of 64"):
        pipeline_of(model, make_tokenizer(), stop_token_ids=[64]).generate(PROMPT)
    with pytest.raises(RecipeError, match="negative"):
        pipeline_of(model, make_tokenizer(), stop_token_ids=[-1])
