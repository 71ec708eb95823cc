"""The best shapes against all shapes."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specframe.components.trees.optimal import (
    Table,
    expected_tau,
    fastest_shape,
    optimal_product_shape,
    optimal_shape,
)
from specframe.components.trees.shape import Shape
from specframe.kernel.errors import InputError

Path = tuple[int, ...]
PAPER = [[0.6, 0.2, 0.1]]
share = st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.3, 0.45, 0.7, 1.0])
tables = st.lists(st.lists(share, min_size=1, max_size=3), min_size=1, max_size=3).filter(lambda t: t[0][0] > 0)


@cache
def all_shapes(nodes: int, depth: int, ranks: int, gaps: bool) -> frozenset[frozenset[Path]]:
    """Every shape of so many nodes below the root, one node added to those with one less."""
    if nodes == 1:
        return frozenset({frozenset({(rank,)}) for rank in range(ranks if gaps else 1)})
    found = set()
    for smaller in all_shapes(nodes - 1, depth, ranks, gaps):
        for above in [(), *smaller]:
            if len(above) < depth:
                free = [rank for rank in range(ranks) if (*above, rank) not in smaller]
                found |= {smaller | {(*above, rank)} for rank in (free if gaps else free[:1])}
    return frozenset(found)


def best_of_all(table: Table, nodes: int, depth: int, gaps: bool, off_path: Table = ()) -> float:
    ranks = max(map(len, [*table, *off_path]))
    sizes = (all_shapes(size, depth, ranks, gaps) for size in range(1, nodes + 1))
    return max(expected_tau(Shape(paths), table, off_path) for shapes in sizes for paths in shapes)


@given(table=tables, nodes=st.integers(1, 5), depth=st.integers(1, 4))
def test_no_shape_beats_the_dynamic_program(table: list[list[float]], nodes: int, depth: int) -> None:
    shape = optimal_shape(table, nodes, depth)
    assert shape.nodes <= nodes + 1 and shape.depth <= depth and shape.gap is None
    assert expected_tau(shape, table) == pytest.approx(best_of_all(table, nodes, depth, gaps=False))


@given(table=tables, off_path=tables, nodes=st.integers(1, 5), depth=st.integers(2, 4))
def test_no_shape_beats_the_dynamic_program_with_two_tables(
    table: Table, off_path: Table, nodes: int, depth: int
) -> None:
    shape = optimal_shape(table, nodes, depth, off_path)
    assert shape.nodes <= nodes + 1 and shape.depth <= depth and shape.gap is None
    best = best_of_all(table, nodes, depth, gaps=False, off_path=off_path)
    assert expected_tau(shape, table, off_path) == pytest.approx(best)


def test_the_second_table_serves_what_stands_after_another_choice() -> None:
    table, off_path = [[0.5, 0.3], [0.6, 0.2]], [[], [0.4]]
    shape = Shape([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0), (0, 0, 0)])
    deeper = 0.5 * 0.2 * 0.4 + 0.5 * 0.6 * 0.6
    assert expected_tau(shape, table, off_path) == pytest.approx(1 + 0.8 + 0.5 * 0.8 + 0.3 * 0.4 + deeper)
    assert optimal_shape(table, 4, 2).paths == [(0,), (1,), (0, 0), (1, 0)]
    assert optimal_shape(table, 4, 2, [[], [0.1]]).paths == [(0,), (1,), (0, 0), (0, 1)]


@given(table=tables, nodes=st.integers(1, 4))
def test_no_shape_beats_the_largest_products(table: list[list[float]], nodes: int) -> None:
    table = table if any(table[0]) else [[0.5]]
    shape = optimal_product_shape(table, nodes)
    assert shape.nodes <= nodes + 1 and shape.depth <= len(table)
    assert expected_tau(shape, table) == pytest.approx(best_of_all(table, nodes, len(table), gaps=True))


def test_both_agree_where_earlier_choices_are_the_better_ones() -> None:
    table = [[0.634, 0.108, 0.057, 0.0225], [0.5, 0.2, 0.06], [0.4, 0.1]]
    for nodes in (1, 5, 20, 40):
        program, products = optimal_shape(table, nodes, 3), optimal_product_shape(table, nodes)
        assert expected_tau(program, table) == pytest.approx(expected_tau(products, table))


def test_a_worse_earlier_sibling_is_paid_for_only_where_draws_need_it() -> None:
    table = [[0.1, 0.6]]
    assert optimal_product_shape(table, 1).paths == optimal_product_shape([[0.0, 0.6]], 1).paths == [(1,)]
    assert optimal_shape(table, 1, 1).paths == [(0,)]
    assert optimal_shape(table, 2, 1).paths == [(0,), (1,)]


def test_hopeless_nodes_are_not_added() -> None:
    assert optimal_shape([[0.5, 0.0]], 6, 2).paths == [(0,), (0, 0)]
    assert optimal_product_shape([[0.5, 0.0], [0.0]], 6).paths == [(0,)]


def test_the_fastest_shape_weighs_tokens_against_seconds() -> None:
    free = dict.fromkeys((2, 4, 8), 1.0)
    assert fastest_shape(PAPER, draft_seconds=0.0, cycle_seconds=free, depth=3).shape.nodes == 8
    steep = {2: 1.0, 8: 3.0}
    choice = fastest_shape(PAPER, draft_seconds=0.0, cycle_seconds=steep, depth=3)
    assert choice.shape.paths == [(0,)] and choice.rate == pytest.approx(1.6)
    dear = fastest_shape(PAPER, draft_seconds=1.0, cycle_seconds=free, depth=3)
    assert dear.shape.depth == 1 and dear.seconds == 2.0
    block = fastest_shape(PAPER, draft_seconds=0.5, cycle_seconds=free, depth=2, block=2)
    assert block.shape.depth == 2 and block.seconds == 1.5
    every = [
        (expected_tau(s, PAPER) / (s.depth * 0.1 + seconds))
        for size, seconds in steep.items()
        for s in (optimal_shape(PAPER, size - 1, depth) for depth in (1, 2, 3))
    ]
    assert fastest_shape(PAPER, draft_seconds=0.1, cycle_seconds=steep, depth=3).rate == pytest.approx(max(every))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: optimal_shape([], 3, 2), "sometimes accepted"),
        (lambda: optimal_shape([[0.0], [0.5]], 3, 2), "sometimes accepted"),
        (lambda: optimal_shape([[0.0, 0.5]], 1, 2), "at least one path"),
        (lambda: optimal_shape([[1.5]], 3, 2), "between 0 and 1"),
        (lambda: optimal_shape(PAPER, 0, 2), "at least one node"),
        (lambda: optimal_shape(PAPER, 3, 0), "depth of at least 1"),
        (lambda: optimal_product_shape([[]], 3), "sometimes accepted"),
        (lambda: fastest_shape(PAPER, draft_seconds=0, cycle_seconds={1: 1.0}, depth=2), "two nodes or more"),
    ],
)
def test_broken_tables_are_refused(build: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()  # type: ignore[operator]
