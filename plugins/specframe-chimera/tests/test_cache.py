"""The cache of n-gram states: what it keeps, what it moves away, what it counts; and that it changes nothing."""

from __future__ import annotations

import random

import chimera_fakes as fakes
import pytest
import torch

from specframe import CompositionError
from specframe.testing import GrowingTree
from specframe_chimera.cache import Lookups, NGramCache, Shelf
from specframe_chimera.network import NOTHING, ngrams


class Computing:
    """States that identify their n-gram, and a record of what was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, grams):
        self.asked += map(tuple, grams.tolist())
        return self.truth(grams)

    @staticmethod
    def truth(grams):
        return torch.stack([grams.double().sum(-1), 1 / (3 + grams.double()[..., 0])], -1)


def look(cache: NGramCache, *grams: tuple[int, ...]) -> None:
    wanted = torch.tensor(grams)
    assert torch.equal(cache(wanted), Computing.truth(wanted))


def test_the_least_recently_used_goes_to_secondary_storage_and_comes_back():
    compute = Computing()
    cache = NGramCache(compute, capacity=2)
    look(cache, (1, 1))
    look(cache, (2, 2))
    look(cache, (1, 1))  # so that (2, 2) is the older one
    assert cache.lookups == Lookups(hits=1, computed=2)
    assert cache._shelf is None
    look(cache, (3, 3))
    assert list(cache._rows) == [(1, 1), (3, 3)] and (2, 2) in cache._shelf and (1, 1) not in cache._shelf
    look(cache, (2, 2))  # read back; (1, 1) goes
    assert list(cache._rows) == [(3, 3), (2, 2)] and (1, 1) in cache._shelf
    assert cache.lookups == Lookups(hits=1, stored=1, computed=3)
    assert compute.asked == [(1, 1), (2, 2), (3, 3)], "each is computed once"
    assert cache.lookups.hit_rate == pytest.approx(1 / 5) and cache.lookups.saving == pytest.approx(2 / 5)


def test_more_than_fit_into_memory_in_one_call():
    compute = Computing()
    cache = NGramCache(compute, capacity=3)
    grams = torch.tensor([[5, 1], [6, 1], [5, 1], [7, 1], [8, 1], [5, 1], [6, 1], [9, 1]]).view(2, 4, 2)
    assert torch.equal(cache(grams), Computing.truth(grams))
    assert sorted(compute.asked) == [(5, 1), (6, 1), (7, 1), (8, 1), (9, 1)]
    assert cache.lookups.total == 8 and cache.lookups.computed == 5


def test_it_is_a_dictionary_whatever_is_asked():
    chance = random.Random(0)
    for capacity in (1, 2, 5, 40):
        compute, wanted = Computing(), 0
        cache = NGramCache(compute, capacity)
        for _ in range(40):
            grams = [(chance.randrange(6), chance.randrange(2)) for _ in range(chance.randint(1, 9))]
            look(cache, *grams)
            wanted += len(grams)
            assert len(cache._rows) <= capacity
        assert len(compute.asked) == len(set(compute.asked)) == cache.lookups.computed
        assert cache.lookups.total == wanted


def test_padding_is_not_counted():
    cache = NGramCache(Computing(), capacity=1)
    for _ in range(2):
        look(cache, (NOTHING, NOTHING), (NOTHING, 4), (NOTHING, NOTHING))
    assert cache.lookups == Lookups(hits=0, stored=1, computed=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_secondary_storage_returns_the_same_bits(dtype):
    shelf, states = Shelf(), torch.randn(5, 3).to(dtype)
    grams = [(i, 0) for i in range(5)]
    shelf.put(grams[:3], states[:3])
    shelf.put(grams[1:], states[1:])
    assert torch.equal(shelf.get([grams[4], grams[0], grams[2]]), states[[4, 0, 2]])
    file = shelf._file
    assert file.seek(0, 2) == states.nbytes, "what is there is not written again"
    del shelf
    assert file.closed


@torch.no_grad()
@pytest.mark.parametrize("capacity", [1, 4, 1000])
def test_it_does_not_change_results(capacity):
    plain, cached = fakes.bound(), fakes.bound(cache=capacity)
    sessions = [fakes.session(3), fakes.session(3)]
    for cycle, counts in enumerate([[9, 4, 1], [1, 3, 2], [2, 1, 1]]):
        results = []
        for drafter, session in zip((plain, cached), sessions, strict=True):
            if not cycle:
                drafter.open(8, 64)
            drafter.commit((session.advance if cycle else session.admit)(counts))
            tree = GrowingTree(session.root, fakes.VOCAB, cycle)
            found = [drafter.expand(tree.frontier([0])).logits]
            nodes = [tree.add(0), tree.add(0), tree.add(0)]
            found.append(drafter.expand(tree.frontier(nodes)).logits)
            found.append(drafter.expand(tree.frontier([tree.add(nodes[1]), tree.add(nodes[1])])).logits)
            results.append(torch.cat(found, 1))
        torch.testing.assert_close(*results, rtol=0, atol=1e-12)
    committed, drafted = sum(map(len, sessions[0].tokens)), 3 * 3 * 5
    assert plain.lookups == Lookups()
    assert cached.lookups.total == committed + drafted, "the root of a draft is a committed token already"


def test_it_outlives_a_session_and_is_forgotten_in_training():
    drafter, session = fakes.bound(cache=100), fakes.session(1)
    committed = session.admit([6])
    root = GrowingTree(session.root, fakes.VOCAB).frontier([0])
    for _ in range(2):
        drafter.open(1, 20)
        drafter.commit(committed)
        before = drafter.expand(root).logits
    assert drafter.lookups == Lookups(hits=6, computed=6) and drafter.lookups.hit_rate == 0.5
    features, tokens = committed.features["last"], torch.randint(fakes.VOCAB, (1, 9))
    drafter.read(drafter.unroll(features, tokens)).sum().backward()
    with torch.no_grad():
        for weight in drafter.module.parameters():
            weight.sub_(0.1 * weight.grad)
    drafter.open(1, 20)
    drafter.commit(committed)
    after = drafter.expand(root).logits
    assert drafter.lookups.computed == 12 and not torch.allclose(before, after)
    with torch.no_grad():
        drafter.unroll(features, tokens)  # validation does not
    drafter.open(1, 20)
    drafter.commit(committed)
    drafter.expand(root)
    assert drafter.lookups.computed == 12


def test_it_can_be_filled_beforehand():
    drafter, session = fakes.bound(cache=100), fakes.session(1)
    committed = session.admit([6])
    drafter.precompute([committed.tokens[0].tolist(), []])
    assert drafter.lookups == Lookups() and len(drafter.network.states._rows) == len(set(grams_of(committed.tokens)))
    drafter.open(1, 20)
    drafter.commit(committed)
    drafter.expand(GrowingTree(session.root, fakes.VOCAB).frontier([0]))
    assert drafter.lookups == Lookups(hits=6) and drafter.lookups.saving == 1.0
    with pytest.raises(CompositionError, match="cache"):
        fakes.bound().precompute([[1, 2]])


def grams_of(tokens):
    return map(tuple, ngrams(tokens, 3)[0].tolist())
