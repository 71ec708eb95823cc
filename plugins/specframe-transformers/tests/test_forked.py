"""Logits processors with a state, or with something for each row of a batch: `generate`'s texts with every tree."""

from dataclasses import dataclass
from itertools import count

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList

import specframe
from specframe.kernel.errors import InputError
from specframe_transformers.forked import Forked

PROMPTS = {1: [[15, 16, 17, 15, 16]], 3: [[15, 16, 17, 15, 16], [9, 8, 7, 9, 8], [22, 23, 22, 23, 22]]}
RECIPES = {
    "suffix": ["drafter={use: suffix}", "tree=null"],
    "recycling": ["drafter={use: recycling}", "tree=null"],
    "lookup": ["drafter={use: lookup, ngram: 1}", "tree=null"],
    "trained": [],
    "recursive": ["verifier.use=recursive", "tree={use: fixed, widths: [3, 2, 1]}"],
}


class EveryThird(LogitsProcessor):
    """Bans the likeliest tokens at every third call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, tokens, scores):
        self.calls += 1
        if self.calls % 3:
            return scores
        return scores.masked_fill(scores >= scores.topk(2).values[:, -1:], -torch.inf)


class Matcher:
    """A grammar whose next token is of the other parity than the last; it cannot be copied but by `fork`."""

    def __init__(self, last=None):
        self.last = last

    def accept(self, token):
        if self.last is not None and (token - self.last) % 2 == 0:
            return False
        self.last = token
        return True

    def fork(self):
        return Matcher(self.last)

    def __deepcopy__(self, memo):
        raise TypeError("cannot pickle a matcher")


class Compiled:
    """A compiled grammar, which a matcher is made from: it cannot be copied at all."""

    def __deepcopy__(self, memo):
        raise TypeError("cannot pickle a grammar")


class Grammar(LogitsProcessor):
    """A processor as xgrammar has it: a matcher for each row, made at the first call, with assertions."""

    def __init__(self):
        self.compiled = Compiled()
        self.matchers = []

    def __call__(self, tokens, scores):
        if not self.matchers:
            self.matchers = [Matcher(int(row[-1])) for row in tokens]
        else:
            assert len(tokens) == len(self.matchers)
            for matcher, row in zip(self.matchers, tokens, strict=True):
                assert matcher.accept(int(row[-1]))
        ids = torch.arange(scores.shape[-1])
        last = torch.tensor([[matcher.last] for matcher in self.matchers])
        return scores.masked_fill((ids - last) % 2 == 0, -torch.inf)


class RowBias(LogitsProcessor):
    """One bias for each row of the batch."""

    def __init__(self, rows):
        self.bias = torch.randn(rows, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 3

    def __call__(self, tokens, scores):
        return scores + self.bias


class Smoothed(LogitsProcessor):
    """Subtracts the mean of the scores of all earlier calls: its state depends on scores."""

    def __init__(self):
        self.total = 0.0

    def __call__(self, tokens, scores):
        before = self.total
        self.total = 0.9 * self.total + scores
        return scores - before


KINDS = {
    "counts": lambda rows: EveryThird(),
    "grammar": lambda rows: Grammar(),
    "bias": RowBias,
    "smoothed": lambda rows: Smoothed(),
    "function": lambda rows: (
        lambda tokens, scores: scores.masked_fill((torch.arange(64) + tokens[:, -1:]) % 3 == 0, -9.0)
    ),
}


@pytest.mark.parametrize("rows", PROMPTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe_name", RECIPES)
def test_texts_are_generates(recipe, model, recipe_name, kind, rows):
    ids = torch.tensor(PROMPTS[rows])
    options = {"max_new_tokens": 14, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    processor = KINDS[kind](rows)
    wanted = model.generate(ids, logits_processor=LogitsProcessorList([KINDS[kind](rows)]), **options)
    assert not torch.equal(wanted, model.generate(ids, **options)), "the processor changes something"
    loop = specframe.decoder(recipe, overrides=RECIPES[recipe_name])
    for _ in range(2):  # the caller's own object keeps its state
        found = model.generate(ids, logits_processor=LogitsProcessorList([processor]), custom_generate=loop, **options)
        assert found.tolist() == wanted.tolist()


def test_a_banned_draft_is_not_asked_about_and_an_allowed_one_that_fails_is_reported():
    forked = Forked(Grammar(), 0, 1)
    scores = torch.zeros(1, 8)
    assert forked(torch.tensor([[1]]), scores).isfinite().tolist() == [[id % 2 == 0 for id in range(8)]]
    answers = forked(torch.tensor([[1, 3], [1, 2]]), scores.expand(2, -1))
    assert answers[0].isfinite().all() and answers[1].isfinite().tolist() == [id % 2 == 1 for id in range(8)]
    assert forked(torch.tensor([[1, 3, 5]]), scores).isfinite().all()
    assert not forked(torch.tensor([[1, 2, 3]]), scores).isfinite().all()
    with pytest.raises(InputError, match="Broken failed: ValueError: no"):
        Forked(Broken(), 0, 1)(torch.tensor([[1]]), scores)


class Broken:
    def __call__(self, tokens, scores):
        raise ValueError("no")


@dataclass
class Sealed:
    """A processor with something in it that has no copy."""

    grammar: Compiled

    def __call__(self, tokens, scores):
        return scores


def counting():
    calls = 0

    def processor(tokens, scores):
        nonlocal calls
        calls += 1
        return scores - float(calls > 4)

    return processor


class Random:
    def __init__(self):
        self.next = count()

    def __call__(self, tokens, scores):
        return scores + torch.rand_like(scores)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Sealed(Compiled()), r"Sealed cannot be copied .*give it a method fork\(\)"),
        (counting, "processor is a function that changes variables around it"),
        (Random, "Random gives two answers to one question"),
    ],
)
def test_what_cannot_be_forked_is_refused(recipe, model, make, words):
    loop = specframe.decoder(recipe, overrides=RECIPES["suffix"])
    ids = torch.tensor(PROMPTS[1])
    with pytest.raises(InputError, match=words):
        model.generate(ids, max_new_tokens=9, logits_processor=[make()], custom_generate=loop, do_sample=False)
