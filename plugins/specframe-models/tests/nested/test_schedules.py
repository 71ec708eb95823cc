"""LayerSkip's schedules against its formulas, literally."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from specframe_models.nested.schedules import chances, enabled, weights


@pytest.mark.parametrize("layers", [2, 7, 14, 32])
@pytest.mark.parametrize(("step", "total"), [(0, 9), (3, 9), (8, 9)])
def test_chances_are_the_exponential_schedule_s(layers, step, total):
    constant, growing = chances(layers, 0.2), chances(layers, 0.2, step / (total - 1))
    for layer in range(layers):
        over_layers = math.exp(layer * math.log(2) / (layers - 1)) - 1
        over_time = math.exp(step * math.log(2) / (total - 1)) - 1
        assert constant[layer] == pytest.approx(0.2 * over_layers)
        assert growing[layer] == pytest.approx(0.2 * over_layers * over_time)
    assert constant[0] == 0 and constant[-1] == pytest.approx(0.2)


@pytest.mark.parametrize("layers", [2, 3, 14])
@pytest.mark.parametrize("scale", [0.2, 1.0])
def test_weights_are_the_sums_over_the_layers_below(layers, scale):
    def literal(layer):
        if layer < layers - 1:
            return scale * sum(range(layer + 1))
        return layers - 1 + scale * sum(range(layers - 1))

    for exits in ([layers], list(range(2, layers + 1)), [*range(2, layers, 3), layers]):
        whole = sum(literal(exit - 1) for exit in exits)
        assert weights(exits, layers, scale) == pytest.approx([literal(exit - 1) / whole for exit in exits])
    assert all(one < two for one, two in pairwise(weights(range(1, layers + 1), layers, scale)))


@pytest.mark.parametrize(("layers", "every"), [(14, 8), (14, 3), (6, 6), (4, 1)])
def test_a_rotational_curriculum_moves_a_layer_up_in_every_step(layers, every):
    first = 0
    for step in range(3 * every):
        layer, wanted = first, set()
        while layer < layers:  # every so many layers, from the first on
            wanted.add(layer + 1)
            layer += every
        assert enabled("rotational", layers, step, 100, every) == sorted(wanted | {layers})
        first = 0 if first + 1 == every else first + 1
    steps = [enabled("rotational", layers, step, 100, every) for step in range(every)]
    counted = sorted(exit for exits in steps for exit in exits if exit < layers)
    assert counted == list(range(1, layers)), "each exit once in so many steps"


@pytest.mark.parametrize("layers", [4, 14])
def test_a_gradual_curriculum_adds_a_layer_in_every_2l_th_of_the_training(layers):
    total = 2 * layers * 5
    for step in range(total):
        done = min(layers, max(1, step // 5))  # one more in every T / (2 L) steps, the last layer always
        wanted = list(range(layers - done + 1, layers + 1))
        assert enabled("gradual", layers, step, total, 1) == wanted


def test_all_exits():
    assert enabled("all", 5, 3, 10, 2) == [1, 2, 3, 4, 5]
