"""A target grown into a larger vocabulary begins with what the smaller one knows."""

from __future__ import annotations

import random

import pytest
import torch
from net import Net, load
from tokenizer import train
from transformers import PreTrainedTokenizerFast
from widening import spellings, widen

from specframe_zoo import small_talk

SYLLABLES = ("tra", "mel", "on", "qui", "zo", "gar", "ith", "un")


@pytest.fixture(scope="module")
def old() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(small_talk())


@pytest.fixture(scope="module")
def new() -> PreTrainedTokenizerFast:
    """Another tokenizer, of words that the old one spells out."""
    chance = random.Random(0)
    words = ["".join(chance.choices(SYLLABLES, k=3)) for _ in range(200)]
    return train(iter([" ".join(words)]), vocabulary=500, context=512)


@pytest.fixture(scope="module")
def grown(new: PreTrainedTokenizerFast) -> Net:
    return widen(small_talk(), new)


def test_entries_are_spelt_as_the_old_tokenizer_spells_them(
    old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast
) -> None:
    spelt = spellings(old, new)
    assert len(spelt) == len(new) == 500
    assert [spelt[number] for number in range(6)] == [[number] for number in range(6)], "special tokens keep their ids"
    for number in range(6, 500):
        assert old.decode(spelt[number]) == new.decode([number]), number
    assert max(map(len, spelt)) > 1, "or nothing was new"


def test_rows_are_means_and_the_body_is_the_old_one(
    old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast, grown: Net
) -> None:
    small = load(small_talk(), torch.device("cpu"))
    for number, ids in enumerate(spellings(old, new)):
        assert torch.allclose(grown.embedding[number], small.embedding[ids].mean(0), atol=1e-6)
    state = small.state_dict()
    for name, weight in grown.state_dict().items():
        if name != "embedding":
            assert torch.equal(weight, state[name]), name


@torch.no_grad()
def test_a_text_of_common_tokens_gets_the_states_that_it_got(
    old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast, grown: Net
) -> None:
    known = {ids[0]: number for number, ids in enumerate(spellings(old, new)) if len(ids) == 1}
    text = sorted(known)[:12]
    small = load(small_talk(), torch.device("cpu"))
    before = small.hidden(torch.tensor([text]))
    after = grown.hidden(torch.tensor([[known[token] for token in text]]))
    assert torch.allclose(before, after, atol=1e-5)
