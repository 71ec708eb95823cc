"""Tokens as bytes, texts in another vocabulary's tokens, and drafts of real tokenizers."""

from __future__ import annotations

import argparse
import inspect
import typing

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import specframe
import specframe.plugin
from specframe import CompositionError, InputError, compose
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.tiny import tiny_llama
from specframe.components.targets.tokenizer import TokenizerSource
from specframe.components.trees.fixed import Chain
from specframe.plugin import TokenTree
from specframe_models.vocabularies.intersection import Intersection
from specframe_models.vocabularies.matching import Matching, leaves, united
from specframe_models.vocabularies.reading import Reading, as_text
from specframe_models.vocabularies.strings import Strings
from specframe_models.vocabularies.vocabulary import Vocabulary, shared, toys
from specframe_trees.adaptive import Adaptive
from specframe_zoo import smollm2

TEXT = "The elephants' tokenization: naïve 日本語 🙂 — def f(x):\n\n    return 12345\n  ok  "


def vocabulary(name: str, size: int) -> Vocabulary:
    return Vocabulary.of(TokenizerSource(specframe.model_folder(name)).get(), size)


@pytest.fixture(scope="module")
def pair() -> tuple[Vocabulary, Vocabulary]:
    talk = vocabulary("talk-7m", 4096)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=6000, special_tokens=list(talk.special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator([inspect.getsource(module) for module in (inspect, typing, argparse)], trainer)
    other = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", extra_special_tokens=sorted({*talk.special} - {"<|end|>"})
    )
    return talk, Vocabulary.of(other, len(other))


def test_what_tokens_write(pair) -> None:
    for each in pair:
        assert each.write(each.encode(TEXT)[0]).decode() == TEXT
        assert each.pieces[each.end] is None and each.special["<|end|>"] == each.end


def test_tokens_that_both_have(pair) -> None:
    mine, theirs = shared(*pair)
    assert len(mine) > 1000 and len(set(mine.tolist())) == len(mine) and bool((theirs.diff() > 0).all())
    for own, other in zip(mine.tolist(), theirs.tolist(), strict=True):
        assert pair[0].pieces[own] == pair[1].pieces[other]
    assert (pair[0].end, pair[1].end) in set(zip(mine.tolist(), theirs.tolist(), strict=True))


def test_a_text_is_cut_as_it_would_be_as_a_whole(pair) -> None:
    """Whatever the target's tokens are: its own, single bytes, and halves of characters."""
    own, other = pair
    text = TEXT * 3
    for tokens in (other.encode(text)[0], [other.pieces.index(bytes([byte])) for byte in text.encode()]):
        reading = Reading(own, other, other.encode("Hello")[0], {})
        known = reading.tokens
        for place in range(0, len(tokens), 3):
            before = reading.tokens
            stay = reading.write(tokens[place : place + 3])
            assert reading.tokens[:stay] == before[:stay]
        assert reading.complete and reading.generated == tokens
        assert reading.tokens == [*known, *own.encode(text)[0]]


def test_a_character_waits_for_its_last_byte(pair) -> None:
    own, other = pair
    reading = Reading(own, other, [], {})
    assert len(reading.tokens) == 2  # nothing to read yet, but a root must be
    first, *rest = [other.pieces.index(bytes([byte])) for byte in "日".encode()]
    before = reading.tokens
    reading.write([first])
    assert not reading.complete and reading.tokens == before
    reading.write(rest)
    assert reading.complete and own.write(reading.tokens).decode() == "日"


def test_prompts_in_the_drafters_format() -> None:
    target = Vocabulary((b"Hi", None, None, b" you"), lambda text: ([], []), lambda text: [], {"<s>": 1, "<e>": 2})
    drafter = Vocabulary((b"Hi", None), lambda text: ([], []), lambda text: [], {"<e>": 1})
    assert as_text([1, 0, 3, 2], target, drafter, {"<s>Hi": "<e>Oh"}) == "<e>Oh you<e>"
    assert as_text([1, 0, 3, 2], target, drafter, {}) == "Hi you<e>"


@pytest.mark.parametrize("steps", [["▁", "<0x0A>"], []])
def test_sentencepiece_and_what_is_no_text(steps) -> None:
    kinds = [decoders.Replace("▁", " "), decoders.ByteFallback()] if steps else [decoders.WordPiece()]
    tokens = {"▁the": 0, "<0x0A>": 1, "a": 2}
    backend = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    backend.decoder = decoders.Sequence(kinds)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    if not steps:
        with pytest.raises(CompositionError, match="tokens are pieces of text"):
            Vocabulary.of(tokenizer, 3)
        return
    assert Vocabulary.of(tokenizer, 5).pieces == (b" the", b"\n", b"a", None, None)


def test_toys_differ() -> None:
    for size in range(2, 8):
        drafter, target = toys(size)
        mine, theirs = shared(drafter, target)
        assert len(target.pieces) == size and 2 <= len(mine) < len(drafter.pieces)
        assert bool((mine != theirs).any())


def test_paths_and_trees() -> None:
    tokens, parents, valid = [9, 1, 2, 3, 4], [-1, 0, 0, 1, 1], [True, True, True, True, False]
    assert list(leaves(tokens, parents, valid)) == [[2], [1, 3]]
    tree = united(torch.tensor([9, 8]), [[[1, 2, 3], [1, 4]], []], 4)
    assert tree.tokens.tolist() == [[9, 1, 2, 3], [8, 0, 0, 0]] and tree.levels == 3
    assert tree.parent.tolist()[0] == [-1, 0, 1, 2] and tree.valid.tolist()[1] == [True, False, False, False]
    alone = united(torch.tensor([9]), [[]], 4)
    assert isinstance(alone, TokenTree) and alone.tokens.tolist() == [[9]] and alone.levels == 0


def test_refusals() -> None:
    model = ModelDrafter.from_model(tiny_llama(3, 0))
    with pytest.raises(CompositionError, match="reads tokens alone and grows a tree policy"):
        Intersection(drafter=Lookup())
    with pytest.raises(CompositionError, match="neither samples nor learns"):
        Matching(drafter=model, tree=Chain(draw=specframe.plugin.Draw.IID))
    with pytest.raises(CompositionError, match="neither samples nor learns"):
        Matching(drafter=model, tree=Adaptive(depth=1, costs=[1.0, 1.1]))
    with pytest.raises(InputError, match="at least 2 nodes"):
        Matching(drafter=model, tree=Chain(), nodes=1)
    with pytest.raises(InputError, match="slrs needs width and reach"):
        Strings(drafter=model, width=0)
    with pytest.raises(CompositionError, match="needs the tokenizers of target and drafter"):
        compose(target={"use": "table"}, drafter=Intersection(drafter=model), tree="chain", verifier="match")


@pytest.mark.sampled
@pytest.mark.skipif(
    not smollm2.folder.is_dir(), reason="SmolLM2 is not cached: `specframe run recipes/lookup.yaml` fetches it"
)
@pytest.mark.parametrize(
    ("drafter", "tree"),
    [
        ("tli", "{use: dynamic, depth: 2, width: 2, nodes: 4}"),
        ("slem, tree: {use: chain, depth: 5}", None),
        ("slrs, width: 2, reach: 2", "{use: chain, depth: 2}"),
        ("omnidraft", "{use: chain, depth: 3}"),
        ("omnidraft, cache: all", "{use: chain, depth: 3}"),
    ],
)
def test_two_real_vocabularies(drafter: str, tree: str | None, tmp_path) -> None:
    """A model of 4,096 tokens drafts for one of 49,152: greedy output is the target's, and drafts are accepted."""
    recipe = tmp_path / "recipe.yaml"
    lines = [
        "specframe: 1",
        "target: {use: hf, model: zoo://smollm2-135m, dtype: float32}",
        f"drafter: {{use: {drafter}, drafter: {{use: model, model: zoo://talk-7m}}}}",
        "verifier: match",
        "run: {chat: true, batch: 2}",
        *([f"tree: {tree}"] if tree else []),
    ]
    recipe.write_text("\n".join(lines), encoding="utf-8")
    pipeline = specframe.load(recipe)
    prompts = ["What do you like to do on a rainy day?", "Tom reads 12 pages a day for 5 days. How many is that?"]
    result = pipeline.generate(prompts, max_new_tokens=24)
    assert result.tokens == pipeline.plain().generate(prompts, max_new_tokens=24).tokens
    assert result.acceptance.tau > 1.2
