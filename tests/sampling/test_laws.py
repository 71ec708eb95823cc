import dataclasses

import pytest
import torch
from transformers import (
    MinLengthLogitsProcessor,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specframe.kernel.errors import InputError
from specframe.kernel.types import TokenTree
from specframe.sampling.laws import History, Sampling, _nucleus, first_argmax

TREE = TokenTree(  # two rows: a chain with a branch, and one with padding
    tokens=torch.tensor([[3, 1, 2, 4, 1], [5, 5, 0, 9, 9]]),
    parent=torch.tensor([[-1, 0, 1, 0, 2], [-1, 0, 1, 0, 0]]),
    valid=torch.tensor([[True] * 5, [True, True, True, False, False]]),
    draw=torch.zeros(2, 5, dtype=torch.int64),
    levels=3,
)
HISTORY = History(tokens=torch.tensor([[1, 2, 3, 0, 0], [4, 5, 4, 5, 5]]), count=torch.tensor([3, 5]))
CONTEXTS = [
    [[1, 2, 3], [1, 2, 3, 1], [1, 2, 3, 1, 2], [1, 2, 3, 4], [1, 2, 3, 1, 2, 1]],
    [[4, 5, 4, 5, 5], [4, 5, 4, 5, 5, 5], [4, 5, 4, 5, 5, 5, 0]],
]


def logits_for(tree, vocab=10, seed=0, dtype=torch.float64):
    numbers = torch.Generator().manual_seed(seed)
    return torch.randn(*tree.tokens.shape, vocab, generator=numbers, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("sampling", "warpers"),
    [
        (Sampling(temperature=1.0), []),
        (Sampling(temperature=0.7), [TemperatureLogitsWarper(0.7)]),
        (Sampling(temperature=1.0, top_k=3), [TopKLogitsWarper(3)]),
        (Sampling(temperature=1.0, top_k=99), [TopKLogitsWarper(99)]),
        (Sampling(temperature=1.0, top_p=0.6), [TopPLogitsWarper(0.6)]),
        (Sampling(temperature=1.0, top_p=0.0), [TopPLogitsWarper(0.0)]),
        (Sampling(temperature=1.0, min_p=0.3), [MinPLogitsWarper(0.3)]),
        (Sampling(temperature=1.0, min_p=1.0), [MinPLogitsWarper(1.0)]),
        (
            Sampling(temperature=1.3, top_k=6, top_p=0.8, min_p=0.1),
            [
                TemperatureLogitsWarper(1.3),
                TopKLogitsWarper(6),
                TopPLogitsWarper(0.8),
                MinPLogitsWarper(0.1),
            ],
        ),
    ],
)
def test_laws_are_those_of_transformers(sampling, warpers, ties):
    for seed in range(5):
        logits = logits_for(TREE, seed=seed)
        if ties:
            logits = (logits * 2).round() / 2
        expected = logits.flatten(0, 1)
        for warper in warpers:
            expected = warper(None, expected)
        expected = expected.softmax(-1).view_as(logits)
        law = sampling.law(logits, TREE)
        assert torch.equal(law > 0, expected > 0)
        assert (law - expected).abs().max() < 1e-12


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 12.0])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 0.999])
def test_top_p_of_a_large_vocabulary_is_that_of_transformers(p, spread, ties):
    """Flat laws, where everything has to be sorted, and peaked ones, where a few tokens are enough."""
    logits = spread * logits_for(TREE, vocab=3000, seed=1)
    if ties:
        logits = (logits * 2).round() / 2
    expected = TopPLogitsWarper(p)(None, logits.flatten(0, 1)).softmax(-1).view_as(logits)
    law = Sampling(temperature=1.0, top_p=p).law(logits, TREE)
    assert torch.equal(law > 0, expected > 0)
    assert (law - expected).abs().max() < 1e-12


@pytest.mark.parametrize("sizes", [[], [4], [2, 4]])
@pytest.mark.parametrize(("p", "kept"), [(0.25, 1), (0.5, 1), (0.625, 2), (0.75, 2), (0.875, 3)])
def test_top_p_stops_at_the_token_that_reaches_it(p, kept, sizes):
    law = torch.tensor([[0.25, 0.0625, 0.5, 0.125, 0.0625, 0.0]])  # its sums are not rounded
    best = law.argsort(descending=True, stable=True)
    assert set(_nucleus(law, p, sizes)[0].nonzero()[:, 0].tolist()) == set(best[0, :kept].tolist())


def test_temperature_0_is_one_hot_at_the_first_largest_logit():
    logits = torch.tensor([[[0.0, 2.0, 2.0, 1.0]]], dtype=torch.bfloat16)
    law = Sampling().law(logits, TokenTree.root_only(torch.tensor([0])))
    assert law.dtype == torch.float32
    assert law.tolist() == [[[0, 1, 0, 0]]]
    assert Sampling().greedy
    assert not Sampling(temperature=0.1).greedy


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_first_argmax_is_the_smallest_index_of_a_literal_search(dtype):
    logits = torch.randint(-3, 4, (2, 3, 40)).to(dtype)  # many ties
    logits[0, 0, 7] = torch.nan
    logits[1, 2] = -torch.inf
    found = first_argmax(logits).tolist()
    assert found[0][0] == 7
    for row, index in zip(logits.flatten(0, 1)[1:].tolist(), [*found[0][1:], *found[1]], strict=True):
        assert index == row.index(max(row))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_laws_have_at_least_float32(temperature):
    for given, expected in [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
    ]:
        law = Sampling(temperature=temperature).law(logits_for(TREE, dtype=given), TREE)
        assert law.dtype == expected


PROCESSORS = (
    RepetitionPenaltyLogitsProcessor(1.7),
    NoRepeatNGramLogitsProcessor(2),
    MinLengthLogitsProcessor(6, eos_token_id=7, device="cpu"),
)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_processors_see_the_committed_tokens_and_the_nodes_own_path(temperature):
    sampling = Sampling(temperature=temperature, processors=PROCESSORS).following(HISTORY)
    plain = Sampling(temperature=temperature)
    logits = logits_for(TREE)
    before = logits.clone()
    law = sampling.law(logits, TREE)
    for row, contexts in enumerate(CONTEXTS):
        for node, context in enumerate(contexts):
            scores = logits[row, node][None].clone()
            for processor in PROCESSORS:
                scores = processor(torch.tensor([context]), scores)
            expected = plain.law(scores[None], TokenTree.root_only(torch.tensor([0])))[0, 0]
            assert torch.equal(law[row, node], expected)
    assert torch.equal(logits, before)
    assert not torch.equal(law, plain.law(logits, TREE))


def test_processors_see_the_nodes_asked_for():
    sampling = Sampling(temperature=1.0, processors=PROCESSORS, history=HISTORY)
    logits = logits_for(TREE)
    nodes = torch.tensor([[4, 0, 3], [2, 1, -1]])
    picked = logits.gather(1, nodes.clamp(min=0)[..., None].expand(-1, -1, 10))
    law = sampling.law(picked, TREE, nodes)
    everything = sampling.law(logits, TREE)
    for row in range(2):
        for place, node in enumerate(nodes[row].tolist()):
            if node >= 0:
                assert torch.equal(law[row, place], everything[row, node])


def test_processors_without_history_are_refused():
    with pytest.raises(InputError, match="following"):
        Sampling(processors=PROCESSORS).law(logits_for(TREE), TREE)


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 1.1},
        {"top_p": -0.1},
        {"min_p": 2.0},
    ],
)
def test_settings_out_of_range_are_refused_by_name(setting):
    with pytest.raises(InputError, match=next(iter(setting))):
        Sampling(**setting)


def test_sampling_is_immutable():
    sampling = Sampling()
    with pytest.raises(dataclasses.FrozenInstanceError):
        sampling.temperature = 1.0
    assert sampling.following(HISTORY).history is HISTORY
    assert sampling.history is None
