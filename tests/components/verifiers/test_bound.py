"""The optimal acceptance rate, against every set of tokens and against a flow."""

from itertools import product

import pytest
import torch

from specframe.components.verifiers.recursive import Recursive
from specframe.kernel.errors import InputError
from specframe.kernel.types import Draw
from specframe.plugin import greedy_acceptance, optimal_acceptance
from specframe.testing import compare_cycle
from specframe_trees.greedy import Greedy

TOP, IID, WOR = Draw.TOP, Draw.IID, Draw.WITHOUT_REPLACEMENT


def laws(vocab, seed):
    """A pair of laws that are far from flat, some with zeros."""
    weights = torch.rand(2, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) ** 3
    if seed % 3 == 0:
        weights[1, 0] = 0
    if seed % 4 == 0:
        weights[0, 1] = 0
    p, q = weights / weights.sum(1, keepdim=True)
    return p, q


def siblings_law(q, draw, siblings):
    """{tuple of siblings: probability}, by hand."""
    law = {}
    for tokens in product(range(len(q)), repeat=siblings):
        left, chance = q.tolist(), 1.0
        for token in tokens:
            chance *= left[token] / sum(left) if left[token] else 0.0
            if draw is WOR and chance:
                left[token] = 0.0
            if not chance:
                break
        if chance:
            law[tokens] = chance
    return law


def cut(p, law):
    """1 + min over all sets H of p(H) - Q(H)."""
    sets = [{i for i in range(len(p)) if bits >> i & 1} for bits in range(2 ** len(p))]
    return 1 + min(
        sum(float(p[i]) for i in inside) - sum(chance for tokens, chance in law.items() if inside.issuperset(tokens))
        for inside in sets
    )


def flow(p, law):
    """The most that can be moved from tuples onto their own tokens, by augmenting paths."""
    room = p.tolist()
    moved = {}  # (tuple, token) -> mass
    left = dict(law)
    total = 0.0
    for source in law:
        while left[source] > 1e-13:
            parents, queue, goal = {source: None}, [source], None
            while queue and goal is None:
                at = queue.pop(0)
                if isinstance(at, tuple):
                    steps = set(at)
                else:
                    steps = {t for (t, token), mass in moved.items() if token == at and mass > 1e-13}
                    if room[at] > 1e-13:
                        goal = at
                for step in steps - parents.keys():
                    parents[step] = at
                    queue.append(step)
            if goal is None:
                break
            route = [goal]
            while parents[route[-1]] is not None:
                route.append(parents[route[-1]])
            edges = list(zip(route[1:], route, strict=False))
            backward = [moved[b, a] for a, b in edges if not isinstance(a, tuple)]
            mass = min([left[source], room[goal], *backward])
            for a, b in edges:
                edge, sign = ((a, b), 1) if isinstance(a, tuple) else ((b, a), -1)
                moved[edge] = moved.get(edge, 0.0) + sign * mass
            left[source] -= mass
            room[goal] -= mass
            total += mass
    return total


@pytest.mark.parametrize("draw", [IID, WOR])
@pytest.mark.parametrize(("vocab", "siblings"), [(3, 1), (3, 2), (4, 3), (5, 2), (5, 3), (4, 4), (8, 2)])
def test_prefixes_are_enough(draw, vocab, siblings):
    for seed in range(3 if vocab < 8 else 1):
        p, q = laws(vocab, seed)
        wanted = min(siblings, int((q > 0).sum())) if draw is WOR else siblings
        law = siblings_law(q, draw, wanted)
        assert float(optimal_acceptance(p, q, draw, siblings)) == pytest.approx(cut(p, law), abs=1e-10)


@pytest.mark.parametrize("draw", [IID, WOR])
def test_the_rate_is_that_of_a_largest_flow(draw):
    for seed in range(4):
        p, q = laws(4, seed)
        rate = flow(p, siblings_law(q, draw, 2))
        assert float(optimal_acceptance(p, q, draw, 2)) == pytest.approx(rate, abs=1e-9)


def test_known_cases():
    p, q = laws(6, 1)
    for draw in (IID, WOR):
        assert float(optimal_acceptance(p, q, draw, 1)) == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-12)
        assert float(optimal_acceptance(p, p, draw, 2)) == pytest.approx(1, abs=1e-9)
    assert float(optimal_acceptance(p, q, WOR, 6)) == pytest.approx(1, abs=1e-12)
    assert float(optimal_acceptance(p, q, WOR, 9)) == pytest.approx(1, abs=1e-12)
    assert float(optimal_acceptance(p, q, TOP, 2)) == pytest.approx(float(p[q.topk(2).indices].sum()), abs=1e-12)
    assert float(greedy_acceptance(p, q, 1)) == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-12)


def test_greedy_trees_reach_their_bound():
    p, q = laws(4, 1)
    comparison = compare_cycle(Greedy(widths=[2]), Recursive(), p.expand(4, 4), q.expand(4, 4))
    assert comparison.tv < 1e-12
    rates = [float(greedy_acceptance(p, q, 2)), float(optimal_acceptance(p, q, TOP, 2))]
    assert rates[0] >= rates[1] - 1e-12


def test_batches_and_large_vocabularies():
    scores = torch.randn(2, 2, 3, 5000, generator=torch.Generator().manual_seed(0))
    p, q = (3 * scores[0]).softmax(-1), (3 * scores[0] + scores[1]).softmax(-1)
    for draw, siblings in [(IID, 2), (WOR, 2), (IID, 4), (TOP, 4)]:
        rate = optimal_acceptance(p, q, draw, siblings)
        assert rate.shape == (2, 3) and rate.dtype == torch.float64
        assert float(rate[1, 2]) == pytest.approx(float(optimal_acceptance(p[1, 2], q[1, 2], draw, siblings)), abs=1e-9)
        assert bool((rate > optimal_acceptance(p, q, draw, 1) - 1e-9).all() and (rate <= 1 + 1e-6).all())
    two, three = (optimal_acceptance(p[0, 0], q[0, 0], WOR, k) for k in (2, 3))
    assert float(two) < float(three) < 1


def test_the_pair_formula_is_the_integral():
    from specframe.components.verifiers.bound import _all_within, _pair_within

    _, q = laws(40, 2)
    inside = q.cumsum(-1)
    both = _all_within(q, 1 - inside, 2)
    assert torch.allclose(_pair_within(q, inside)[:-1], both[:-1], rtol=0, atol=1e-10)


def test_senseless_questions_are_refused():
    p, q = laws(3, 1)
    with pytest.raises(InputError, match="sibling"):
        optimal_acceptance(p, q, IID, 0)
    with pytest.raises(InputError, match="shapes"):
        optimal_acceptance(p, q[:2], IID, 2)
