"""The search over sets of parts: its surrogate next to a literal one, its rounds, its end."""

from __future__ import annotations

from math import exp, sqrt

import pytest
import torch

from specframe_self.layers import search as searching
from specframe_self.layers.search import SetSearch, neighbours
from specframe_self.layers.surrogate import NOISE, expect

PARTS, COUNT = 8, 3
IDLE = {1, 4, 6}


def literal_expectation(tried, scores, other) -> tuple[float, float]:
    """Mean and deviation of one set's score, by the textbook's inverse."""
    count = len(scores)
    middle = sum(scores) / count
    spread = max(sqrt(sum((score - middle) ** 2 for score in scores) / count), 1e-6)

    def alike(a, b) -> float:
        distance = sqrt(5 * sum(x != y for x, y in zip(a, b, strict=True)) / (len(a) / 4))
        return (1 + distance + distance**2 / 3) * exp(-distance)

    known = torch.tensor([[alike(a, b) for b in tried] for a in tried], dtype=torch.float64)
    inverse = (known + NOISE * torch.eye(count, dtype=torch.float64)).inverse()
    across = torch.tensor([alike(a, other) for a in tried], dtype=torch.float64)
    levels = torch.tensor([(score - middle) / spread for score in scores], dtype=torch.float64)
    mean = float(across @ inverse @ levels)
    return middle + spread * mean, spread * sqrt(max(0.0, 1 - float(across @ inverse @ across)))


def sets(seed: int, count: int) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    return (torch.rand(count, PARTS, generator=chance).argsort(1) < COUNT).double()


def score(chosen: torch.Tensor) -> float:
    return len(IDLE & set(chosen.nonzero()[:, 0].tolist())) / COUNT


@pytest.mark.parametrize("seed", range(5))
def test_the_surrogate_is_the_literal_one(seed):
    tried, others = sets(seed, 6), sets(seed + 50, 4)
    scores = torch.rand(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    mean, deviation = expect(tried, scores, others)
    for place, other in enumerate(others.tolist()):
        wanted = literal_expectation(tried.tolist(), scores.tolist(), other)
        assert (float(mean[place]), float(deviation[place])) == pytest.approx(wanted, abs=1e-6)


def test_a_promising_set_is_the_literal_one(monkeypatch):
    monkeypatch.setattr(searching, "CANDIDATES", 20)
    search, twin = (SetSearch(PARTS, [0, 1, 2], rounds=99, patience=99, enough=1.0, seed=3) for _ in range(2))
    for one in (search, twin):
        for _ in range(8):
            one.record(score(one.next()))
    tried = torch.stack(twin._tried).tolist()
    candidates = [*twin._draw(20).tolist(), *neighbours(twin.best).tolist()]

    def bound(candidate) -> float:
        mean, deviation = literal_expectation(tried, twin.scores, candidate)
        return mean + 2.5 * deviation

    assert bound(search.promising().tolist()) == pytest.approx(max(map(bound, candidates)), abs=1e-6)


def test_a_round_tries_a_set_of_the_same_size_and_keeps_the_best():
    search = SetSearch(PARTS, [0, 2, 3], rounds=60, patience=60, enough=0.99)
    best = 0.0
    assert search.next().nonzero()[:, 0].tolist() == [0, 2, 3]
    search.record(0.0)
    while not search.done:
        chosen = search.next()
        assert int(chosen.sum()) == COUNT
        search.record(score(chosen))
        best = max(best, score(chosen))
        assert search.score == best == score(search.best)
    assert set(search.best.nonzero()[:, 0].tolist()) == IDLE


@pytest.mark.parametrize(
    ("limits", "values", "rounds"),
    [
        ({"rounds": 3}, [0.1, 0.2, 0.3, 0.4], 3),
        ({"patience": 2}, [0.5, 0.5, 0.4, 0.9], 3),
        ({"enough": 0.6}, [0.1, 0.6, 0.7, 0.9], 3),
        ({"rounds": 0}, [], 0),
    ],
)
def test_a_search_ends(limits, values, rounds):
    search = SetSearch(PARTS, [0, 1, 2], **{"rounds": 99, "patience": 99, "enough": 1.0} | limits)
    for value in values:
        if not search.done:
            search.next()
            search.record(value)
    assert search.done and len(search.scores) == rounds


def test_neighbours_differ_in_one_part():
    chosen = torch.tensor([True, False, True, False, False])
    found = neighbours(chosen)
    assert len(found) == 6 and len({tuple(row) for row in found.tolist()}) == 6
    assert ((found != chosen).sum(1) == 2).all() and (found.sum(1) == 2).all()
