"""The enumerator of branches one at a time, next to that of branches side by side."""

import math

from specframe.testing import enumerate_outcomes
from specframe_against.replay import replay_outcomes
from tests.certify.traps.instances import Q


def test_a_second_enumerator_agrees():
    def scalar(replay):
        first = replay.choose(Q.tolist())
        rest = [0.0 if i == first else x for i, x in enumerate(Q.tolist())]
        second = replay.choose([x / sum(rest) for x in rest])
        return first, second

    def batched(random, rows):
        return random.without_replacement(Q.expand(rows, 4), 2)

    one, other = replay_outcomes(scalar), enumerate_outcomes(batched)
    assert one.branches == other.branches == 12
    assert all(math.isclose(one.law[key], other.law[key], rel_tol=1e-14) for key in one.law)
