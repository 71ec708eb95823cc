import math

import pytest
import torch

from specframe.certify.compositions.branches import HiddenState, UnnormalisedLaw
from specframe.certify.compositions.enumeration import enumerate_outcomes
from specframe.testing import LazyUniform
from tests.certify.traps.instances import P3, P, Q, law


def everything(random, rows):
    """All three draws, on several elements, one law depending on what was drawn."""
    first = random.without_replacement(Q.expand(rows, 2, 4), 2)  # [B, 2, 2]
    laws = torch.stack([P.roll(int(shift)) for shift in range(4)])
    then = random.categorical(laws[first[:, 0]])  # [B, 2]
    coin = random.bernoulli(Q[then[:, 0]])
    return torch.cat([first.flatten(1), then, coin[:, None].long()], 1)


def by_hand():
    """The same law, written down."""
    found = {}
    pairs = [(a, b, Q[a] * Q[b] / (1 - Q[a])) for a in range(4) for b in range(4) if a != b]
    for a, b, one in pairs:
        for c, d, other in pairs:
            for x in range(4):
                for y in range(4):
                    share = one * other * P.roll(a)[x] * P.roll(b)[y]
                    found[a, b, c, d, x, y, 1] = float(share * Q[x])
                    found[a, b, c, d, x, y, 0] = float(share * (1 - Q[x]))
    return found


def test_every_outcome_has_its_probability():
    result = enumerate_outcomes(everything)
    wanted = by_hand()
    assert result.exhausted and result.missing == 0
    assert result.branches == len(result.law) == len(wanted)
    assert all(math.isclose(result.law[outcome], mass, rel_tol=1e-12) for outcome, mass in wanted.items())
    assert math.isclose(result.mass, 1.0, abs_tol=1e-12)


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_branches_side_by_side_are_branches_one_by_one(rows):
    def short(random, count):
        drawn = random.without_replacement(P3.expand(count, 3), 2)
        return torch.cat([drawn, random.bernoulli(P3[drawn[:, 1]])[:, None].long()], 1)

    result, other = enumerate_outcomes(short, rows=rows), enumerate_outcomes(short)
    assert result.branches == other.branches
    assert result.law.keys() == other.law.keys()
    assert all(math.isclose(result.law[key], other.law[key], rel_tol=1e-14) for key in other.law)


def test_what_cannot_happen_is_no_branch():
    zeros = law(0.0, 0.5, 0.0, 0.5)

    def program(random, rows):
        sure = random.bernoulli(torch.ones(rows)) & ~random.bernoulli(torch.zeros(rows))
        drawn = random.without_replacement(zeros.expand(rows, 4), 3)
        return torch.cat([drawn, sure[:, None].long()], 1)

    assert enumerate_outcomes(program).law == {(1, 3, -1, 1): 0.5, (3, 1, -1, 1): 0.5}


def test_next_to_nothing_is_cut_and_accounted_for():
    tiny = law(0.5, 0.5 - 1e-14, 1e-14)

    def program(random, rows):
        return random.categorical(tiny.expand(rows, 2, 3))

    result = enumerate_outcomes(program)
    assert result.branches == 4 and result.exhausted
    assert math.isclose(result.cut, 2e-14, rel_tol=1e-3)
    assert math.isclose(result.mass + result.cut, 1.0, abs_tol=1e-15)
    whole = enumerate_outcomes(program, cut=0.0)
    assert whole.branches == 9 and whole.cut == 0


def test_a_budget_is_honest_and_spent_on_the_likeliest():
    steep = law(0.9, 0.05, 0.03, 0.02)

    def program(random, rows):
        return random.categorical(steep.expand(rows, 4, 4))

    seen = []
    result = enumerate_outcomes(program, budget=60, rows=10, progress=seen.append)
    assert not result.exhausted and not result.interrupted
    assert result.branches == 60 == seen[-1].branches
    assert 0.9 < result.mass < 1 and math.isclose(result.missing, 1 - result.mass, rel_tol=1e-9)
    assert "not exhausted: 60 branches" in result.summary()


def test_an_interrupt_returns_what_there_is():
    calls = []

    def program(random, rows):
        calls.append(rows)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return random.categorical(P.expand(rows, 3, 4))

    result = enumerate_outcomes(program)
    assert result.interrupted and not result.exhausted
    assert 0 < result.mass < 1
    assert math.isclose(sum(result.law.values()), result.mass)


@pytest.mark.parametrize(
    ("law", "message"),
    [(law(0.5, 0.4), "sums"), (law(1.2, -0.2), "least entry -0.2"), (law(math.nan, 1.0), "no distribution")],
)
def test_what_is_no_law_is_refused(law, message):
    with pytest.raises(UnnormalisedLaw, match=message):
        enumerate_outcomes(lambda random, rows: random.categorical(law.expand(rows, 2)))


def test_a_coin_beyond_one_and_a_wrong_batch_are_refused():
    with pytest.raises(UnnormalisedLaw, match=r"1\.5"):
        enumerate_outcomes(lambda random, rows: random.bernoulli(torch.full((rows,), 1.5)))
    with pytest.raises(UnnormalisedLaw, match="first dimension"):
        enumerate_outcomes(lambda random, rows: random.categorical(P.expand(rows + 1, 4)))


def test_hidden_randomness_is_found():
    generator = torch.Generator().manual_seed(1)

    def other_laws(random, rows):
        hidden = torch.rand(1, generator=generator, dtype=torch.float64)
        return random.bernoulli((hidden * 0.5 + 0.2).expand(rows, 3)).long()

    def other_options(random, rows):
        few = int(torch.randint(2, 5, (1,), generator=generator))
        return random.categorical(torch.full((rows, 3, few), 1 / few, dtype=torch.float64))

    def fewer_draws(random, rows):
        count = int(torch.randint(1, 9, (1,), generator=generator))
        return random.bernoulli(torch.full((rows, count), 0.5)).sum(1, keepdim=True)

    for program in (other_laws, other_options, fewer_draws):
        with pytest.raises(HiddenState):
            enumerate_outcomes(program)


@pytest.mark.parametrize(("budget", "rows"), [(3, 4096), (1000, 4096), (20, 1), (50, 4)])
def test_outcomes_of_their_own_are_found_within_any_budget(budget, rows):
    """The draws replay, and what is made of them differs from call to call."""
    calls = []

    def program(random, rows):
        calls.append(rows)
        return random.categorical(P.expand(rows, 3, 4)) + len(calls)

    with pytest.raises(HiddenState, match="another outcome"):
        enumerate_outcomes(program, budget=budget, rows=rows)


def test_outcomes_are_as_wide_as_their_call_s_widest():
    """A wave whose outcomes are narrower is confirmed by itself, and padding changes no law."""

    def program(random, rows):
        length = 1 + random.bernoulli(torch.full((rows,), 0.25, dtype=torch.float64)).long()
        drawn = random.categorical(Q.expand(rows, 2, 4))
        return drawn.where(torch.arange(2) < length[:, None], -1)[:, : int(length.max())]

    assert enumerate_outcomes(program).exhausted


def test_hidden_state_is_found():
    carried = []

    def program(random, rows):
        carried.append(rows)
        return random.categorical((P if len(carried) % 2 else Q).expand(rows, 2, 4))

    with pytest.raises(HiddenState):
        enumerate_outcomes(program)


def test_draws_for_the_neighbours_sake_are_run_one_by_one():
    # The second draw is made while any row needs it; rows that do not have theirs thrown away.
    def program(random, rows):
        first = random.categorical(P.expand(rows, 4))
        if not (first == 3).any():
            return first[:, None]
        second = random.categorical(P3.expand(rows, 3))
        return torch.where(first == 3, 10 * first + second, first)[:, None]

    result = enumerate_outcomes(program)
    assert result.rows == 1 and result.branches == 3 + 3
    assert math.isclose(result.law[1,], 0.2) and math.isclose(result.law[30,], 0.4 * 0.5)


def test_rows_that_leave_end_their_branch():
    def program(random, rows):
        first = random.bernoulli(torch.full((rows,), 0.5))
        found = torch.zeros(rows, dtype=torch.int64)
        going = first.nonzero()[:, 0]
        if len(going):
            found[going] = random.of_rows(going).categorical(P3.expand(len(going), 3)) + 1
        return found[:, None]

    result = enumerate_outcomes(program)
    assert result.branches == 4 and result.rows > 1
    assert math.isclose(result.law[0,], 0.5) and math.isclose(result.law[1,], 0.25)


def test_one_uniform_number_can_be_compared_twice():
    def program(random, rows):
        number = LazyUniform(random, rows)
        low = number.less_than(torch.full((rows,), 0.6, dtype=torch.float64))
        index = number.inverse_cdf(Q.expand(rows, 4))
        return torch.stack([low.long(), index], 1)

    result = enumerate_outcomes(program)
    wanted = {(1, 0): 0.4, (1, 1): 0.2, (0, 1): 0.1, (0, 2): 0.2, (0, 3): 0.1}
    assert result.law.keys() == wanted.keys()
    assert all(math.isclose(result.law[key], wanted[key]) for key in wanted)
