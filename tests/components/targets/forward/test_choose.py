"""Greedy scores: the likeliest token after every node, and logits where they are asked for, by native passes."""

from __future__ import annotations

import pytest
import torch

import specframe
from specframe.components.drafters.recycling import Recycling
from specframe.components.targets.hf import HFTarget
from specframe.decoding.session import Session
from specframe.kernel.errors import InputError
from specframe.kernel.types import GreedyScores, TokenTree, Verdict
from specframe.sampling.greedy import follow_argmax
from specframe.testing import check_target
from tests.components.targets.models import PROMPTS, VOCABULARY, batch
from tests.components.targets.test_layers import BROAD

DTYPES = [torch.bfloat16, torch.float32]
SAMPLING = {"temperature": 0.0, "max_new_tokens": 24, "ignore_eos": True}


@pytest.fixture
def native(build):
    """A tiny random Llama that native passes run."""

    def make(dtype: torch.dtype = torch.float32, **changes: object) -> HFTarget:
        torch.manual_seed(0)
        target = HFTarget.from_model(build("llama", **(BROAD | changes)).to(dtype))
        target._take_native()
        assert target.forward.finds_best
        return target

    return make


@pytest.fixture
def seen(monkeypatch):
    """The names of the target's methods that cycles call."""
    calls: list[str] = []
    for method in (HFTarget.score, HFTarget.choose):

        def called(self, tree, inner=method):
            calls.append(inner.__name__)
            return inner(self, tree)

        monkeypatch.setattr(HFTarget, method.__name__, called)
    return calls


def decoded(target: HFTarget, drafter: object = "suffix", **parts: object) -> list[list[int]]:
    sampling = SAMPLING | {key: parts.pop(key) for key in ("temperature",) if key in parts}
    made = specframe.compose(target=target, drafter=drafter, sampling=sampling, run={"batch": 3}, **parts)
    return made.generate([list(prompt) for prompt in PROMPTS]).tokens


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_native_target_keeps_the_contract(native, dtype):
    check_target(lambda: native(dtype, max_position_embeddings=600), close=1e-1 if dtype == torch.bfloat16 else 1e-5)


class Blurting(HFTarget):
    """Chooses the token after the likeliest."""

    def choose(self, tree):
        scores = super().choose(tree)
        return GreedyScores((scores.best + 1) % self.vocab_size, scores.features, lambda: scores.logits)


def test_a_target_that_chooses_another_token_fails(native):
    def make() -> HFTarget:
        target = native()
        target.__class__ = Blurting
        return target

    with pytest.raises(AssertionError, match="not the first of the largest logits"):
        check_target(make)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_path_of_likeliest_tokens_is_the_one_that_is_followed(native, dtype):
    """Through wrong, invalid and equal siblings, as far as tokens are found, in rows of unlike lengths."""
    target = native(dtype)
    target.open(3, 60)
    tree, scores = target.admit(batch(PROMPTS))
    root = scores.logits.argmax(-1)[:, 0]
    target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros(3, dtype=torch.int64), root))
    parents = torch.tensor([[-1, 0, 0, 0, 0, 3, 3, 5, 5]]).expand(3, -1)
    tokens = torch.zeros(3, 9, dtype=torch.int64)
    tokens[:, 0] = root
    valid = torch.ones(3, 9, dtype=torch.bool)
    valid[:, 2] = False
    valid[2, 7:] = False
    for _ in range(3):  # what follows a node is known once its own token is
        drafted = TokenTree(tokens, parents, valid, torch.zeros_like(tokens), levels=3)
        best = target.choose(drafted).best
        tokens[:, 2:5], tokens[:, 5], tokens[:, 8] = best[:, :1], best[:, 3], best[:, 5]
        tokens[1, 5] += 1
        tokens %= VOCABULARY
    drafted = TokenTree(tokens, parents, valid, torch.zeros_like(tokens), levels=3)
    scores = target.choose(drafted)
    followed = follow_argmax(drafted, scores.best)
    assert isinstance(scores, GreedyScores) and scores.verdict is not None
    assert scores.verdict.to_host(drafted) == followed.to_host(drafted)
    assert torch.equal(scores.verdict.packed(drafted), followed.packed(drafted))
    assert followed.to_host(drafted).paths == [[3, 5, 8], [3], [3, 5]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nodes_that_are_not_valid_are_not_computed_and_change_no_bit(native, dtype):
    """Rows of 1, 4 and 14 valid nodes, some after others that are not: more than attention takes at once."""
    target = native(dtype)
    target.request(frozenset({"layer.0", "last"}))
    noise = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (3, 16), generator=noise)
    parents = torch.tensor([[-1, 0, 0, 1, 2, 3, 3, 4, 0, 8, 9, 10, 11, 12, 13, 14]]).expand(3, -1)
    valid = torch.ones(3, 16, dtype=torch.bool)
    valid[0, 1:], valid[1, [1, 3, *range(5, 7), *range(8, 16)]], valid[2, [6, 15]] = False, False, False
    found = []
    for real in (valid, torch.ones_like(valid)):
        target.open(3, 60)
        tree, _ = target.admit(batch(PROMPTS))
        target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros(3, dtype=torch.int64), tokens[:, 0]))
        drafted = TokenTree(tokens, parents, real, torch.zeros_like(tokens), levels=9)
        scores = target.choose(drafted)
        assert isinstance(scores, GreedyScores) and scores.verdict is not None
        found.append(scores)
        committed = target.commit(
            drafted, Verdict(tokens[:, :0].new_full((3, 9), -1), tokens.new_zeros(3), tokens[:, 1])
        )
        again = TokenTree.root_only(committed.root)
        found.append(target.choose(again))
    some, after_some, every, after_every = found
    assert torch.equal(some.best[valid], every.best[valid])
    assert torch.equal(after_some.best, after_every.best)
    for tap, features in some.features.items():
        assert torch.equal(features[valid], every.features[tap][valid])
        assert not features[~valid].any(), "nothing is computed there"


@pytest.mark.parametrize(
    "token, parent, change, message",
    [
        (VOCABULARY, [-1, 0], {}, "tokens beyond the vocabulary"),
        (-1, [-1, 0], {}, "tokens beyond the vocabulary"),
        (3, [-1, 1], {}, "parents that are not earlier nodes"),
        (3, [-1, 2], {}, "parents that are not earlier nodes"),
        (3, [-1, 0], {"levels": 0}, "nodes below its levels"),
        (3, [-1, 0], {"parent": torch.tensor([[-1, 0, 1]])}, r"are int64 \[1, 2\]"),
        (3, [-1, 0], {"valid": torch.ones(1, 3, dtype=torch.bool)}, "what nodes see"),
    ],
)
def test_a_tree_that_native_code_would_misread_is_refused(native, token, parent, change, message):
    target = native()
    target.open(1, 20)
    tree, scores = target.admit(batch(PROMPTS[:1]))
    target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros(1, dtype=torch.int64), scores.logits[:, 0].argmax(-1)))
    tokens = torch.tensor([[1, token]])
    drafted = TokenTree(tokens, torch.tensor([parent]), torch.ones(1, 2, dtype=torch.bool), tokens * 0, levels=1)
    vars(drafted).update(change)
    with pytest.raises(ValueError, match=message):
        target.choose(drafted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "drafter", ["none", "suffix", {"use": "self", "exit": 1}, {"use": "recycling", "nodes": 6}], ids=str
)
def test_greedy_texts_are_those_of_logits(native, dtype, drafter, monkeypatch):
    tree = {"tree": {"use": "chain", "depth": 2}} if isinstance(drafter, dict) and drafter["use"] == "self" else {}
    found = decoded(native(dtype), drafter, **tree)
    monkeypatch.setattr(HFTarget, "choose", HFTarget.score)
    assert decoded(native(dtype), drafter, **tree) == found


def test_greedy_decoding_makes_no_logits(native, seen, monkeypatch):
    made = []
    monkeypatch.setattr("specframe.components.targets.hf.logits_of", lambda *given: made.append(given))
    decoded(native())
    assert set(seen) == {"choose"} and not made


def test_logits_that_a_part_reads_are_made_at_once_from_then_on(native, seen, monkeypatch):
    read = []

    def observe(self, cycle, inner=Recycling.observe):
        read.append(cycle.scores.logits.shape)
        inner(self, cycle)

    monkeypatch.setattr(Recycling, "observe", observe)
    decoded(native(), {"use": "recycling", "nodes": 6})
    assert seen[0] == "choose" and set(seen[1:]) == {"score"}
    assert len(read) == len(seen) + 1 and {shape[2] for shape in read} == {VOCABULARY}


def test_new_rows_begin_anew(native, seen):
    made = specframe.compose(target=native(), drafter={"use": "recycling", "nodes": 6}, sampling=SAMPLING)
    requests = made.requests([list(prompt) for prompt in PROMPTS])
    with made.open(requests, slots=3) as session:
        assert isinstance(session, Session)
        for request in requests:
            session.admit([request])
            session.step()
            session.step()
    assert seen == ["choose", "score"] * 3


@pytest.mark.parametrize("rule", [{"temperature": 0.7}, {"verifier": "recursive", "temperature": 0.7}], ids=str)
def test_sampled_decoding_makes_logits(native, seen, rule):
    decoded(native(), **rule)
    assert set(seen) == {"score"}


def test_processors_get_logits(native, seen):
    made = specframe.compose(target=native(), drafter="suffix", sampling=SAMPLING | {"repetition_penalty": 1.2})
    made.generate([list(PROMPTS[0])])
    assert set(seen) == {"score"}


def test_a_target_without_native_passes_scores(build, seen):
    target = HFTarget.from_model(build("llama", **BROAD))
    seen.clear()
    decoded(target)
    assert set(seen[::2]) == {"choose"} and set(seen[1::2]) == {"score"}


def test_states_that_are_not_numbers_end_decoding_with_an_error(native):
    target = native()
    target.forward._ending.fill_(torch.nan)
    with pytest.raises(InputError, match="no token has any probability"):
        decoded(target)
