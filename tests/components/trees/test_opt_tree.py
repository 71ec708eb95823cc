"""OPT-Tree, the policy `dynamic` with a gain, against its slow restatement."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from specframe.components.trees.dynamic import Dynamic
from specframe.kernel.types import Context
from specframe.sampling.laws import Sampling
from specframe.testing import check_tree
from tests.components.path_drafter import PathDrafter, Ranked, path

WARM = Sampling(temperature=1.0)
ROOTS = torch.tensor([1, 0, 1])


@given(
    depth=st.integers(1, 5),
    nodes=st.integers(1, 9),
    block=st.integers(1, 3),
    salt=st.integers(0, 999),
    gain=st.sampled_from([0.05, 0.2, 0.5]),
)
def test_opt_tree_stops_where_a_level_adds_little(depth: int, nodes: int, block: int, salt: int, gain: float) -> None:
    drafter = PathDrafter(4, block, salt)
    tree = Dynamic(depth=depth, width=nodes, nodes=nodes, gain=gain).grow(
        drafter.expand, ROOTS, Context(WARM, Ranked())
    )
    reached = []
    for row, root in enumerate(ROOTS.tolist()):
        level, values, expected = {(root,): 0.0}, {}, 0.0
        for _ in range(depth):
            level = {
                (*line, token): value + float(drafter.at(line).log_softmax(-1)[token])
                for line, value in level.items()
                for token in range(4)
            }
            values |= level
            best = sorted(values, key=lambda line: -values[line])[:nodes]
            before, expected = expected, sum(math.exp(values[line]) for line in best)
            reached.append(len(next(iter(level))) - 1)
            if expected - before <= gain:
                break
            level = dict(sorted(level.items(), key=lambda item: -item[1])[:nodes])
        mine = {path(tree, row, node) for node in range(1, tree.tokens.shape[1]) if tree.valid[row, node]}
        assert mine == set(best), "the best tree of all, not of a beam"
    assert drafter.calls == -(-max(reached) // block), "no forward once all rows have stopped"


def test_opt_tree_keeps_its_contract() -> None:
    check_tree(lambda: Dynamic(depth=3, width=4, nodes=4, gain=0.3))
