"""Training's forward: n-grams, the mask in terms of tokens, and the logits of every head, in float64."""

from __future__ import annotations

import chimera_fakes as fakes
import chimera_reference as reference
import pytest
import torch

from specframe.components.heads import FullHead
from specframe.components.rollouts.teacher_forced import AllLevels
from specframe_chimera.drafter import Chimera
from specframe_chimera.network import NOTHING, fusion_mask, ngrams

CLOSE = {"rtol": 1e-6, "atol": 1e-6}  # norms and rotary angles are float32 in transformers
SHAPES = [(1, False), (2, True), (3, True), (3, False), (5, True)]


def test_the_first_ngrams_are_shorter():
    grams = ngrams(torch.tensor([[4, 5, 6, 7]]), 3)
    assert grams.tolist() == [[[NOTHING, NOTHING, 4], [NOTHING, 4, 5], [4, 5, 6], [5, 6, 7]]]
    assert ngrams(torch.tensor([[4, 5]]), 1).tolist() == [[[4], [5]]]


@pytest.mark.parametrize("ngram", [1, 3, 5])
@pytest.mark.parametrize("level", [1, 2, 4])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_mask_hides_whatever_holds_a_future_token(n, level, ngram):
    mask = fusion_mask(n, level)[0, 0].tolist()
    count = n + level - 1
    # what an entry holds: feature i the tokens 0 .. i; n-gram j its own tokens, of which the first text token is 1
    features = [set(range(i + 1)) for i in range(n)]
    grams = [set(range(max(1, end - ngram + 1), end + 1)) for end in range(1, count + 1)]
    assert len(mask) == n + count
    for last in range(n):  # the last true feature
        known = set(range(last + level + 1))  # and `level` tokens more: the root, and the path below it
        query = n + last + level - 1  # the newest n-gram: its last token is the newest known one
        assert max(grams[query - n]) == max(known)
        wanted = [held <= set(range(last + 1)) for held in features] + [held <= known for held in grams]
        assert mask[query] == wanted


@pytest.mark.parametrize("ngram", [1, 2, 3, 5])
def test_ngram_states_are_their_formula(ngram):
    drafter = fakes.bound(ngram=ngram)
    text = [3, 1, 4, 1, 5, 9]
    found = drafter._compute(ngrams(torch.tensor([text]), ngram))[0]
    for end in range(len(text)):
        torch.testing.assert_close(found[end], reference.gram_state(drafter, text[: end + 1]), rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize(("ngram", "residual"), SHAPES)
def test_every_head_has_the_paper_s_logits(ngram, residual):
    drafter = fakes.bound(heads=3, ngram=ngram, residual=residual)
    features = torch.randn(2, 4, fakes.SIZE, dtype=torch.float64)
    tokens = torch.randint(fakes.VOCAB, (2, 6))
    predicted = drafter.unroll(features, tokens)
    logits, states = drafter.read(predicted), predicted.features
    assert logits.shape == (2, 4, 3, fakes.VOCAB) and states.shape == (2, 4, 3, fakes.SIZE)
    for b in range(2):
        for i in range(4):
            for level in (1, 2, 3):
                seen = features[b, : i + 1], tokens[b, : i + level].tolist()
                torch.testing.assert_close(states[b, i, level - 1], reference.state(drafter, *seen), **CLOSE)
                wanted = reference.logits(drafter, *seen, level)
                torch.testing.assert_close(logits[b, i, level - 1], wanted, **CLOSE)


def test_states_are_scored_against_the_features_that_they_imitate():
    drafter = fakes.bound(heads=3)
    tokens = torch.randint(fakes.VOCAB, (2, 7))
    teacher = fakes.target().teach(tokens, torch.ones_like(tokens, dtype=torch.bool))
    student = AllLevels()(drafter, teacher, 0.0)
    features = teacher.features["last"]
    assert student.features.shape == (2, 18, fakes.SIZE)
    for m in (0, 4, 11, 13):
        origin, level = m // 3, m % 3 + 1
        assert student.position[0, m] == origin + level
        seen = features[1, : origin + 1], tokens[1, 1 : origin + level + 1].tolist()
        torch.testing.assert_close(student.features[1, m], reference.state(drafter, *seen), **CLOSE)


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_heads_start_as_the_lm_head_and_the_same_in_every_run(shared, residual):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    drafters = [Chimera(heads=2, residual=residual, head=FullHead() if shared else None) for _ in range(2)]
    for drafter in drafters:
        drafter.bind(fakes.target())
    assert torch.equal(state, torch.get_rng_state())
    one, two = (drafter.module.state_dict() for drafter in drafters)
    assert all(torch.equal(one[name], two[name]) for name in one)
    features = torch.randn(1, 3, fakes.SIZE, dtype=torch.float64)
    predicted = drafters[0].unroll(features, torch.randint(fakes.VOCAB, (1, 4)))
    logits, states = drafters[0].read(predicted), predicted.features
    read = states + features[:, :, None] if residual else states
    torch.testing.assert_close(logits, fakes.target().head(read), **CLOSE)


@pytest.mark.parametrize("shared", [True, False])
def test_gradients_reach_every_weight_of_the_module_and_nothing_else(shared):
    drafter = fakes.bound(heads=2, head=FullHead() if shared else None)
    predicted = drafter.unroll(torch.randn(2, 4, fakes.SIZE).double(), torch.randint(fakes.VOCAB, (2, 5)))
    drafter.read(predicted).logsumexp(-1).sum().backward()
    for name, weight in drafter.module.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name
    sizes = [tuple(head.weight.shape) for head in drafter.module.heads]
    assert sizes == [(fakes.SIZE if shared else fakes.VOCAB, 2 * fakes.SIZE)] * 2
