import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specframe.sampling.hashing import scramble, scramble_all, signed
from specframe.sampling.random import SeededRandom, row_seed, uniforms

ONE = torch.ones(4, dtype=torch.int64)
PINNED = [[195, 800], [700, 559], [830, 560], [737, 958]]  # another hash would give a seed other texts
LAW = torch.tensor([0.1, 0.0, 0.4, 0.5], dtype=torch.float64)


def coins(random, *shape):
    return random.bernoulli(torch.full(shape, 0.5))


def indices(random, *shape, vocab=1000):
    return random.categorical(torch.ones(*shape, vocab))


def test_hash_is_splitmix64():
    assert scramble(0) == 0xE220A8397B1DCDAF  # the generator's first two outputs for seed 0
    assert scramble(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4
    states = [0, 1, -1, 2**63 - 1, -(2**63), 123456789]
    assert scramble_all(torch.tensor(states)).tolist() == [signed(scramble(z % 2**64)) for z in states]


@pytest.mark.parametrize("number", [0, -1, 2**63 - 1, 2**63, 2**64 + 5, 3 * 2**63, 7 * 2**63 + 9, -(2**63) - 1])
def test_numbers_wrap_as_int64_does(number):
    found = signed(number)
    assert -(2**63) <= found < 2**63 and (found - number) % 2**64 == 0


def test_same_seed_same_numbers_and_other_seeds_others():
    first, again, other = SeededRandom(7, 3), SeededRandom(7, 3), SeededRandom(8, 3)
    assert torch.equal(indices(first.draft, 3, 5), indices(again.draft, 3, 5))
    assert not torch.equal(indices(first.draft, 3, 5), indices(other.draft, 3, 5))


def test_streams_cycles_rows_methods_calls_and_elements_all_differ():
    random = SeededRandom(0, 4)
    seen = []
    for _ in range(20):
        for stream in (random.draft, random.verify):
            for method in range(3):
                for shape in [(4,), (4, 3), (4, 6), (4, 2, 3)] * 5:  # more calls than a block holds
                    seen += stream._uniforms(method, shape).flatten().tolist()
        random.advance(ONE, 1)
    assert len(seen) == 20 * 2 * 3 * 5 * 4 * 16
    assert len(set(seen)) == len(seen)


def test_numbers_of_a_row_do_not_depend_on_its_neighbours():
    together, alone = SeededRandom(3, 4), SeededRandom(3, 4)
    alone.keep(torch.tensor([2]))
    for cycle in range(11):
        assert torch.equal(indices(together.verify, 4)[2:3], indices(alone.verify, 1))
        assert torch.equal(indices(together.verify, 4, 3)[2:3], indices(alone.verify, 1, 3))
        law = torch.rand(4, 2, 50, generator=torch.Generator().manual_seed(cycle))
        drawn = together.draft.without_replacement(law, 4)
        assert torch.equal(drawn[2:3], alone.draft.without_replacement(law[2:3], 4))
        together.advance(ONE, 1)
        alone.advance(ONE[:1], 1)


def test_keep_carries_a_rows_numbers_along_within_a_cycle():
    whole, kept = SeededRandom(3, 4), SeededRandom(3, 4)
    assert torch.equal(indices(whole.draft, 4), indices(kept.draft, 4))
    rows = torch.tensor([3, 1])
    kept.keep(rows)
    assert torch.equal(indices(whole.draft, 4)[rows], indices(kept.draft, 2))


@pytest.mark.parametrize(("narrow", "wide"), [((3,), (4,)), ((3,), (9,)), ((1, 1), (7, 5)), ((2, 3), (4, 3))])
def test_padding_a_call_moves_no_number(narrow, wide):
    one, other = SeededRandom(5, 2), SeededRandom(5, 2)
    for _ in range(20):
        few, many = indices(one.draft, 2, *narrow), indices(other.draft, 2, *wide)
        assert torch.equal(few, many[(slice(None), *map(slice, narrow))])
    assert torch.equal(indices(one.verify, 2)[:, None], indices(other.verify, 2, 1))


def test_coins_of_a_neighbour_do_not_move_the_categorical_draws():
    one, other = SeededRandom(5, 1), SeededRandom(5, 1)
    coins(one.verify, 1)
    for _ in range(9):
        coins(other.verify, 1)
    assert torch.equal(indices(one.verify, 1), indices(other.verify, 1))


def test_uniforms_are_uniform():
    numbers = uniforms(1, 100_000)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = torch.histc(numbers, 100, 0, 1)
    assert ((counts - 1000) ** 2 / 1000).sum() < 160  # chi squared, 99 degrees of freedom, p about 1e-4
    pairs = (numbers[:-1] - 0.5) * (numbers[1:] - 0.5)
    assert abs(pairs.mean()) < 5 / 12 / math.sqrt(len(pairs))


@pytest.mark.parametrize("scale", [1.0, 7.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_categorical_draws_from_the_law(scale, dtype):
    rows = 40_000
    drawn = SeededRandom(0, 1).draft.categorical((LAW * scale).to(dtype).expand(1, rows, 4))[0]
    counts = drawn.bincount(minlength=4)
    assert counts[1] == 0
    assert ((counts / rows - LAW).abs() < 5 * (LAW * (1 - LAW) / rows).sqrt() + 1e-12).all()


@pytest.mark.parametrize("law", [[0, 0, 1], [1, 0, 0], [0, 1e-30, 0], [1e-8, 0, 0]])
def test_categorical_of_a_one_hot_law_is_sure(law):
    drawn = SeededRandom(1, 1).verify.categorical(torch.tensor(law, dtype=torch.float32).expand(1, 5000, 3))
    assert (drawn == law.index(max(law))).all()


def test_bernoulli_is_strict():
    random = SeededRandom(1, 1).verify
    assert not random.bernoulli(torch.zeros(1, 20_000)).any()
    assert random.bernoulli(torch.ones(1, 20_000)).all()
    assert abs(random.bernoulli(torch.full((1, 20_000), 0.3)).double().mean() - 0.3) < 5 * 0.46 / math.sqrt(20_000)


def test_a_coin_of_probability_0_does_not_come_up_even_for_the_least_number(monkeypatch):
    stream = SeededRandom(0, 1).verify
    monkeypatch.setattr(stream, "_uniforms", lambda method, shape: torch.zeros(shape, dtype=torch.float64))
    assert stream.bernoulli(torch.tensor([[0.0, 1e-30]])).tolist() == [[False, True]]
    assert stream.categorical(torch.tensor([[0.0, 0.5, 0.5]])).tolist() == [1]


def test_without_replacement_draws_in_draw_order():
    rows = 40_000
    drawn = SeededRandom(2, 1).draft.without_replacement(LAW.expand(1, rows, 4), 2)[0]
    counts = (drawn[:, 0] * 4 + drawn[:, 1]).bincount(minlength=16).view(4, 4) / rows
    expected = LAW[:, None] * LAW / (1 - LAW)[:, None]
    expected.fill_diagonal_(0)
    assert ((counts - expected).abs() < 5 * (expected * (1 - expected) / rows).sqrt() + 1e-12).all()


def test_without_replacement_stops_at_exhausted_mass():
    drawn = SeededRandom(2, 50).draft.without_replacement(LAW.float().expand(50, 2, 4), 6)
    assert drawn.shape == (50, 2, 6)
    assert (drawn[..., 3:] == -1).all()
    assert (drawn[..., :3].sort()[0] == torch.tensor([0, 2, 3])).all()


def test_drawing_leaves_the_law_as_it_was():
    law = LAW.expand(1, 4).clone()
    SeededRandom(0, 1).draft.without_replacement(law, 3)
    assert torch.equal(law[0], LAW)


def chosen_places(random, counts, calls=3):
    """The indices drawn for the first places of two rows' texts, `counts` places a cycle."""
    found = {}
    place = torch.zeros(2, dtype=torch.int64)
    for count in counts:
        drawn = [indices(random.position, 2) for _ in range(calls)]
        for row in range(2):
            for call in range(int(count[row])):
                found.setdefault((row, int(place[row]) + call), set()).add(int(drawn[call][row]))
        random.advance(torch.tensor(count), calls)
        place += torch.tensor(count)
    return found


def test_numbers_by_position_do_not_depend_on_the_cycles_they_were_drawn_in():
    one = chosen_places(SeededRandom(4, 2), [(1, 1)] * 90, calls=1)
    other = chosen_places(SeededRandom(4, 2), [(3, 1), (1, 2), (2, 3)] * 15)
    many = chosen_places(SeededRandom(4, 2), [(40, 1)] * 2, calls=40)  # a block ends in the middle of a cycle
    assert all(one[place] == drawn for place, drawn in many.items())
    assert all(len(drawn) == 1 for drawn in (*one.values(), *other.values()))
    assert len(other) == 15 * 12 and all(one[place] == drawn for place, drawn in other.items())
    assert len({number for drawn in one.values() for number in drawn}) > 150, "places share no number"


def test_rows_that_join_later_have_the_numbers_of_rows_that_were_there():
    whole, late = SeededRandom(9, 2), SeededRandom.of_seeds([])
    late.join(late.start([row_seed(9, 0)]))
    for _ in range(5):
        indices(late.draft, 1), indices(late.position, 1)
        late.advance(ONE[:1], 1)
    late.join(late.start([row_seed(9, 1)]))
    late.keep(torch.tensor([1]))
    for _ in range(11):
        assert torch.equal(indices(whole.draft, 2)[1:], indices(late.draft, 1))
        assert torch.equal(indices(whole.position, 2)[1:], indices(late.position, 1))
        whole.advance(ONE[:2], 1)
        late.advance(ONE[:1], 1)


def test_rows_that_were_there_keep_their_numbers_when_others_join():
    whole, joined = SeededRandom(9, 2), SeededRandom.of_seeds([row_seed(9, 0)])
    seen = set()
    for cycle in range(30):
        numbers = indices(whole.verify, 2, vocab=10**6)[0], indices(joined.verify, 1 + cycle // 3, vocab=10**6)[0]
        assert numbers[0] == numbers[1]
        seen.add(int(numbers[0]))
        whole.advance(ONE[:2], 1)
        joined.advance(ONE[:1].expand(1 + cycle // 3), 1)
        if cycle % 3 == 2:
            joined.join(joined.start([cycle]))
    assert len(seen) == 30, "cycles share no number"


def test_a_seeds_numbers_stay_what_they_are():
    random = SeededRandom(1, 2)
    random.advance(torch.tensor([1, 3]), 3)
    assert indices(random.draft, 2).tolist() == PINNED[0]
    assert indices(random.verify, 2, 6)[:, 5].tolist() == PINNED[1]
    assert indices(random.position, 2).tolist() == PINNED[2]
    assert (uniforms(3, 2) * 1000).long().tolist() == PINNED[3]


def test_a_step_replayed_without_python_gets_fresh_numbers():
    """A captured step reads tensors that stay where they are."""
    random = SeededRandom(1, 1)
    indices(random.verify, 1)  # a captured step was run before
    read = random.verify._now
    seen = []
    for _ in range(20):
        seen.append(float(read[0, 0]))
        random.advance(ONE[:1], 1)
    assert random.verify._now is read and len(set(seen)) == 20


@given(st.lists(st.lists(st.integers(1, 4), min_size=2, max_size=2), min_size=1, max_size=6), st.data())
@settings(deadline=None)
def test_a_place_has_its_number_whether_or_not_others_were_drawn_before(counts, data):
    one, other = (SeededRandom(3, 2) for _ in range(2))
    law = torch.rand(2, 5)
    for count in counts:
        if data.draw(st.booleans()):
            one.position.categorical(law)
        for random in (one, other):
            random.advance(torch.tensor(count), 4)
        if data.draw(st.booleans()):
            order = torch.tensor([1, 0])
            one.keep(order)
            other.keep(order)
    assert torch.equal(one.position.place, other.position.place)
    assert torch.equal(one.position.categorical(law), other.position.categorical(law))
