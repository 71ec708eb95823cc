"""Drafts that exits would have made: the statistics and the choice, next to their literal forms."""

from __future__ import annotations

import random as pyrandom
from itertools import product

import pytest
import torch

from specframe_self.layers.shadow import ShadowTokens, tokens_per_layer

EXITS, LAYERS, DECAY = (1, 3, 4), 6, 0.9


def history(seed: int, rows: int, cycles: int):
    """Cycles of rows: what each exit matched, its confidence, and how many of the positions are real."""
    chance = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(cycles):
        shape = (rows, 4, len(EXITS))
        matched = torch.rand(shape, generator=chance) < torch.tensor([0.3, 0.6, 0.9])
        count = torch.randint(1, 5, (rows,), generator=chance)
        found.append((matched, torch.rand(shape, generator=chance), count))
    return found


def filled(cycles) -> ShadowTokens:
    shadow = ShadowTokens(EXITS, LAYERS, DECAY)
    shadow.join(*cycles[0])
    for cycle in cycles[1:]:
        shadow.observe(*cycle)
    return shadow


def literal_acceptance(cycles, row: int, exit: int) -> float:
    """Matches over positions, each cycle weighed by its age, with a guess that is worth one position."""
    matches, positions = EXITS[exit] / LAYERS, 1.0
    for age, (matched, _, count) in enumerate(reversed(cycles)):
        for place in range(int(count[row])):
            positions += DECAY**age
            matches += DECAY**age * bool(matched[row, place, exit])
    return matches / positions


def literal_threshold(cycles, row: int, exit: int) -> float:
    """Halfway between the mean confidence in right tokens and that in wrong ones."""
    means = []
    for wanted in (True, False):
        weight = total = 0.0
        for age, (matched, confidence, count) in enumerate(reversed(cycles)):
            for place in range(int(count[row])):
                if bool(matched[row, place, exit]) is wanted:
                    weight += DECAY**age
                    total += DECAY**age * float(confidence[row, place, exit])
        if weight == 0:
            return 0.0
        means.append(total / weight)
    return sum(means) / 2


def literal_tpl(acceptance: list[float], exit: int, length: int) -> float:
    """DEL's tokens per layer, in closed form, summed over rows."""
    tokens = [length + 1 if a == 1 else (1 - a ** (length + 1)) / (1 - a) for a in acceptance]
    return sum(tokens) / (length * exit + LAYERS)


@pytest.mark.parametrize("seed", range(10))
def test_statistics_are_the_literal_ones(seed):
    cycles = history(seed, rows=2, cycles=1 + seed)
    shadow = filled(cycles)
    for row, exit in product(range(2), range(len(EXITS))):
        assert float(shadow.acceptance[row, exit]) == pytest.approx(literal_acceptance(cycles, row, exit))
        threshold = float(shadow.thresholds(EXITS[exit])[row])
        assert threshold == pytest.approx(literal_threshold(cycles, row, exit), abs=1e-7)


@pytest.mark.parametrize("seed", range(10))
def test_the_choice_is_that_of_most_tokens_per_layer(seed):
    shadow = filled(history(seed, rows=3, cycles=6))
    acceptance = shadow.acceptance.T.tolist()  # by exit
    every = {
        (exit, length): literal_tpl(acceptance[place], exit, length)
        for place, exit in enumerate(EXITS)
        for length in range(1, 6)
    }
    best = max(every, key=every.__getitem__)
    assert shadow.choose(5) == (best if every[best] > 3 / LAYERS else (EXITS[0], 0))
    found = tokens_per_layer(shadow.acceptance, EXITS, LAYERS, 5)
    for (exit, length), value in every.items():
        assert float(found[EXITS.index(exit), length]) == pytest.approx(value)


def test_an_exit_that_is_always_right_drafts_as_far_as_it_may():
    sure = torch.ones(1, 1, dtype=torch.float64)
    assert tokens_per_layer(sure, [2], 6, 4)[0].tolist() == pytest.approx([(d + 1) / (2 * d + 6) for d in range(5)])


def test_nothing_is_drafted_before_an_exit_was_right():
    nothing = torch.zeros(1, 1, len(EXITS), dtype=torch.bool)
    shadow = ShadowTokens(EXITS, LAYERS, DECAY)
    shadow.join(nothing, nothing.double(), torch.ones(1, dtype=torch.int64))
    assert shadow.choose(4) == (1, 0)
    for _ in range(2):
        shadow.observe(nothing | torch.tensor([False, True, True]), nothing.double(), torch.ones(1, dtype=torch.int64))
    exit, length = shadow.choose(4)
    assert exit == 3 and length >= 1
    for _ in range(20):
        shadow.observe(nothing, nothing.double(), torch.ones(1, dtype=torch.int64))
    assert shadow.choose(4) == (1, 0)


def test_rows_keep_their_own_statistics_when_others_join_and_leave():
    chance = pyrandom.Random(1)
    cycles = history(4, rows=3, cycles=5)
    shadow = ShadowTokens(EXITS, LAYERS, DECAY)
    order: list[int] = []
    mine: dict[int, list] = {}
    for number, (matched, confidence, count) in enumerate(cycles):
        if order:
            shadow.observe(matched[: len(order)], confidence[: len(order)], count[: len(order)])
        for place, row in enumerate(order):
            mine[row].append(tuple(part[place, None] for part in (matched, confidence, count)))
        shadow.join(matched[2:], confidence[2:], count[2:])
        order.append(number)
        mine[number] = [tuple(part[2:] for part in (matched, confidence, count))]
        if len(order) > 2:
            stay = chance.sample(range(len(order)), 2)
            shadow.keep(torch.tensor(stay))
            order = [order[place] for place in stay]
    for place, row in enumerate(order):
        for exit in range(len(EXITS)):
            assert float(shadow.acceptance[place, exit]) == pytest.approx(literal_acceptance(mine[row], 0, exit))
