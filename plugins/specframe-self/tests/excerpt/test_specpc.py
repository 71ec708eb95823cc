"""A small model's attention chooses what is read of a prompt."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.nn.functional import max_pool1d

import specframe
from specframe import CompositionError, InputError
from specframe.certify.compositions.emission import Emission
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import tiny_hybrid, tiny_llama
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.plugin import Draw
from specframe.sampling.laws import Sampling
from specframe.testing import check_drafter
from specframe_self.excerpt.excerpt import Excerpt
from specframe_self.excerpt.specpc import AttendedTokens, pooled

PROMPT = [1, 2, 0, 1, 2, 2, 0, 0, 1, 2, 1, 0, 2, 2, 1, 0]


def model(vocab: int = 3) -> ModelDrafter:
    return ModelDrafter.from_model(tiny_llama(vocab, seed=7))


def bound(vocab: int = 3, **options) -> AttendedTokens:
    selection = AttendedTokens(**{"pool": 1, "neighbours": 0} | options)
    selection.bind(TableTarget(vocab=vocab), model(vocab))
    return selection


@torch.no_grad()
def literal_scores(prompt: list[int], window: int, vocab: int = 3) -> torch.Tensor:
    """The scores by transformers' own attention weights: those of the last queries, weighted, at most over all."""
    reader = tiny_llama(vocab, seed=7)
    reader.set_attn_implementation("eager")
    found = reader(torch.tensor([prompt]), output_attentions=True).attentions
    late = torch.stack(found[len(found) // 3 :])[:, 0, :, -window:]  # [layers, heads, T, S]
    weight = torch.arange(1, window + 1) / window
    return (late * weight[:, None]).flatten(0, 2).amax(0).float()


@pytest.mark.parametrize("window", [1, 4, len(PROMPT)])
def test_scores_are_the_attention_weights_of_transformers(window):
    selection = bound(tokens=window + 1, window=window)
    torch.testing.assert_close(selection._scores(PROMPT), literal_scores(PROMPT, window), rtol=1e-4, atol=1e-5)


def test_a_session_leaves_nothing_to_the_next_prompt():
    selection = bound(tokens=5, window=2)
    first = selection._scores(PROMPT)
    selection._scores(PROMPT[::-1])
    assert torch.equal(selection._scores(PROMPT), first)


def test_the_best_tokens_are_read_with_the_window():
    selection = bound(tokens=7, window=3)
    found = selection.choose(PROMPT)
    scores = literal_scores(PROMPT, 3)[:-3]
    assert found == sorted([*scores.topk(4).indices.tolist(), 13, 14, 15])


def test_neighbours_are_read_nearest_first():
    selection = bound(tokens=6, window=2, neighbours=4)
    best = int(literal_scores(PROMPT, 2)[:-2].argmax())
    near = [place for place in (best, best - 1, best + 1, best - 2, best + 2) if 0 <= place < 14][:4]
    found = selection.choose(PROMPT)
    assert len(found) == 6 and set(near) <= set(found)


@pytest.mark.parametrize("pool", [1, 2, 3, 4])
def test_pooling_is_the_largest_score_around(pool):
    scores = torch.tensor([0.1, 0.0, 0.9, 0.2, 0.0, 0.0, 0.4])
    found = pooled(scores, pool)
    places = [scores[max(0, i - pool // 2) : i + pool - pool // 2].max() for i in range(len(scores))]
    assert found.tolist() == pytest.approx([float(place) for place in places])
    if pool % 2:
        assert torch.equal(found, max_pool1d(scores[None], pool, 1, pool // 2)[0])


def test_special_tokens_are_always_read():
    selection = bound(vocab=16, tokens=5, window=2)
    selection._special = frozenset({9})
    prompt = [*range(3, 9), 9, *range(3, 9), 9, 4, 5, 6]
    assert {6, 13, 15, 16} < set(selection.choose(prompt))


def test_what_is_beyond_the_model_s_context_is_not_ranked(caplog, monkeypatch):
    selection = bound(tokens=4, window=1)
    reader = selection._reader
    monkeypatch.setattr(reader, "context", 10)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            scores = selection._scores(PROMPT)
    assert not scores[:6].any() and bool(scores[6:].all())
    assert [record.message for record in caplog.records] == [
        "a prompt of 16 tokens is longer than the context of specpc's model: its first 6 are not ranked"
    ]


def test_a_model_of_fewer_tokens_reads_its_last_one_in_place_of_others():
    selection = bound(tokens=4, window=1)
    assert torch.equal(selection._scores([0, 1, 9, 9, 2]), selection._scores([0, 1, 2, 2, 2]))


@pytest.mark.full
def test_a_drafter_of_what_is_attended_to_keeps_the_contract_of_a_drafter():
    check_drafter(lambda: Excerpt(drafter=model(), select=AttendedTokens(tokens=3, window=1, drafter=model())))


@pytest.mark.parametrize("draw", [Draw.IID, Draw.WITHOUT_REPLACEMENT])
def test_the_output_keeps_the_target_s_distribution(draw):
    def parts() -> Parts:
        target = TableTarget(vocab=3, order=2, seed=0)
        drafter = Excerpt(drafter=model(), select=AttendedTokens(tokens=5, window=2, pool=2, neighbours=2))
        drafter.bind(target)
        return Parts(target, drafter, Chain(depth=2, draw=draw), Recursive())

    assert Emission("", parts, Sampling(temperature=1.0), 3, tuple(PROMPT)).compare().tv < 1e-9


def test_greedy_text_is_plain_decoding_s_in_a_batch_of_unlike_prompts():
    prompts = [PROMPT, PROMPT[:3], PROMPT[::-1]]
    target = {"use": "table", "vocab": 3, "order": 2}
    drafter = Excerpt(drafter=model(), tokens=6, select=AttendedTokens(window=2))
    assert drafter.select.tokens == 6
    found = specframe.compose(
        target=target,
        drafter=drafter,
        tree={"use": "chain", "depth": 2},
        verifier={"use": "match"},
        sampling={"temperature": 0.0, "max_new_tokens": 8},
        run={"batch": 3},
    )
    assert found.generate(prompts).tokens == found.plain().generate(prompts).tokens


def test_it_has_a_small_form_with_a_model_of_the_vocabulary():
    drafter = Excerpt(drafter=model(64), select=AttendedTokens(drafter=model(64))).untrained(3)
    drafter.bind(TableTarget(vocab=3))
    assert drafter.select.tokens == 3 and len(drafter.select.choose(PROMPT)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 64}, "a budget of 64 tokens does not exceed the window of 64"),
        ({"window": 0}, "1 to 64 tokens"),
        ({"window": 65}, "1 to 64 tokens"),
        ({"pool": 0}, "pool is at least 1"),
        ({"neighbours": -1}, "neighbours at least 0"),
    ],
)
def test_sizes_that_cannot_be_are_a_line(options, message):
    with pytest.raises(InputError, match=message) as error:
        AttendedTokens(**options)
    assert "\n" not in str(error.value)


def test_a_budget_of_the_drafter_below_the_window_is_a_line():
    with pytest.raises(InputError, match="a budget of 32 tokens does not exceed the window of 64"):
        Excerpt(drafter=model(), tokens=32, select=AttendedTokens())


@pytest.mark.parametrize(
    ("reader", "message"),
    [
        (Lookup(), "Lookup is none"),
        (ModelDrafter.from_model(tiny_hybrid(3, seed=0)), "this model's shows no queries"),
    ],
)
def test_a_model_without_readable_attention_is_a_line(reader, message):
    with pytest.raises(CompositionError, match=message) as error:
        AttendedTokens().bind(TableTarget(vocab=3), reader)
    assert "\n" not in str(error.value)


def test_no_model_is_a_line():
    with pytest.raises(InputError, match="needs a small model"):
        AttendedTokens().bind(TableTarget(vocab=3))
