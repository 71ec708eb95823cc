"""The best shapes against all shapes, and Sequoia's policy."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specframe.components.sampling import Sampling
from specframe.components.targets.table import TableTarget
from specframe.components.trees.chain import Chain
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Fixed
from specframe.components.trees.optimal import (
    expected_tau,
    fastest_shape,
    optimal_product_shape,
    optimal_shape,
)
from specframe.components.trees.sequoia import Sequoia
from specframe.components.trees.shape import Shape
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.engine.loop import Parts
from specframe.engine.pipeline import Pipeline
from specframe.engine.profile import profile
from specframe.engine.settings import RunSettings, SamplingSettings
from specframe.kernel.errors import InputError
from specframe.kernel.types import Draw, TokenTree
from specframe.testing import GivenDrafter, check_tree, enumerate_outcomes
from tests.components.path_drafter import PathDrafter, Ranked

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


def best_of_all(table: list[list[float]], nodes: int, depth: int, gaps: bool) -> float:
    ranks = max(map(len, table))
    sizes = (all_shapes(size, depth, ranks, gaps) for size in range(1, nodes + 1))
    return max(expected_tau(Shape(paths), table) for shapes in sizes for paths in shapes)


@settings(max_examples=60, deadline=None)
@given(table=tables, nodes=st.integers(1, 5), depth=st.integers(1, 4))
def test_no_shape_beats_the_dynamic_program(table: list[list[float]], nodes: int, depth: int) -> None:
    shape = optimal_shape(table, nodes, depth)
    assert shape.nodes <= nodes + 1 and shape.depth <= depth and shape.gap is None
    assert expected_tau(shape, table) == pytest.approx(best_of_all(table, nodes, depth, gaps=False))


@settings(max_examples=60, deadline=None)
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


def test_a_worse_elder_is_paid_for_only_where_draws_need_it() -> None:
    table = [[0.1, 0.6]]
    assert optimal_product_shape(table, 1).paths == optimal_product_shape([[0.0, 0.6]], 1).paths == [(1,)]
    assert optimal_shape(table, 1, 1).paths == [(0,)]
    assert optimal_shape(table, 2, 1).paths == [(0,), (1,)]


def test_hopeless_nodes_are_not_added() -> None:
    assert optimal_shape([[0.5, 0.0]], 6, 2).paths == [(0,), (0, 0)]
    assert optimal_product_shape([[0.5, 0.0], [0.0]], 6).paths == [(0,)]


def test_the_fastest_shape_weighs_tokens_against_seconds() -> None:
    free = dict.fromkeys((2, 4, 8), 1.0)
    assert fastest_shape(PAPER, draft_seconds=0.0, target_seconds=free, depth=3).shape.nodes == 8
    steep = {2: 1.0, 8: 3.0}
    choice = fastest_shape(PAPER, draft_seconds=0.0, target_seconds=steep, depth=3)
    assert choice.shape.paths == [(0,)] and choice.rate == pytest.approx(1.6)
    dear = fastest_shape(PAPER, draft_seconds=1.0, target_seconds=free, depth=3)
    assert dear.shape.depth == 1 and dear.seconds == 2.0
    block = fastest_shape(PAPER, draft_seconds=0.5, target_seconds=free, depth=2, block=2)
    assert block.shape.depth == 2 and block.seconds == 1.5
    every = [
        (expected_tau(s, PAPER) / (s.depth * 0.1 + seconds))
        for size, seconds in steep.items()
        for s in (optimal_shape(PAPER, size - 1, depth) for depth in (1, 2, 3))
    ]
    assert fastest_shape(PAPER, draft_seconds=0.1, target_seconds=steep, depth=3).rate == pytest.approx(max(every))


def test_sequoia_is_the_fixed_tree_of_its_shape() -> None:
    policy = Sequoia(acceptance=PAPER, nodes=4, depth=3)
    paths = [".".join(map(str, p)) for p in policy.shape.paths]
    assert paths == ["0", "1", "0.0", "0.0.0"]
    assert policy.draws == {Draw.WITHOUT_REPLACEMENT} and policy.nodes == 5
    roots = torch.tensor([1, 0])
    mine = policy.grow(PathDrafter(6).expand, roots, Sampling(temperature=1.0), Ranked())
    fixed = Fixed(paths=paths, draw=Draw.WITHOUT_REPLACEMENT)
    theirs = fixed.grow(PathDrafter(6).expand, roots, Sampling(temperature=1.0), Ranked())
    assert torch.equal(mine.tokens, theirs.tokens) and torch.equal(mine.q, theirs.q)
    check_tree(lambda: Sequoia(acceptance=PAPER, nodes=3, depth=2))


def test_sequoia_reads_a_measured_table(tmp_path) -> None:
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"acceptance": PAPER}))
    given = Sequoia(acceptance=PAPER, nodes=6)
    assert Sequoia(acceptance=file, nodes=6).shape.paths == given.shape.paths
    file.write_text("[]")
    with pytest.raises(InputError, match="holds no acceptance table"):
        Sequoia(acceptance=file)
    with pytest.raises(InputError, match="cannot read"):
        Sequoia(acceptance=tmp_path / "none.json")


# What is forecast is what happens.

WOR = Draw.WITHOUT_REPLACEMENT
PROMPTS = [[row % 6] for row in range(40)]


def accepted_nodes(tree, p: Tensor, q: Tensor) -> dict[tuple[int, ...], float]:
    """The law of the accepted path of one cycle, where p and q [V] know no context."""
    drafter = GivenDrafter(q)

    def program(random, rows: int) -> Tensor:
        roots = torch.zeros(rows, dtype=torch.int64)
        draft = tree.grow(drafter.expand, roots, Sampling(temperature=1.0), random.draft)
        return Recursive().verify(draft, p.expand(*draft.tokens.shape, -1), random.verify).path

    return enumerate_outcomes(program).law


def test_sequoias_forecast_is_exact_where_acceptance_is_as_in_its_table() -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.3, 0.5]], dtype=torch.float64)
    single = accepted_nodes(Fixed(widths=[3], draw=WOR), p, q)
    table = [[single[(node,)] for node in (1, 2, 3)]]
    tree = Sequoia(acceptance=table, nodes=5, depth=3)
    assert tree.shape.depth > 1
    paths = accepted_nodes(tree, p, q)
    tau = 1 + sum(mass * sum(node >= 0 for node in path) for path, mass in paths.items())
    assert tau == pytest.approx(expected_tau(tree.shape, table), abs=1e-9)


def on_a_table(tree, verifier, noise: float) -> tuple[Pipeline, Tensor]:
    """A table target with a drafter that has its law, save for some noise; and that law [V, V]."""
    target = TableTarget(vocab=6, order=1, sharpness=1.5, seed=4)
    logits = target.logits_after(torch.arange(6)[:, None])
    q = (logits + noise * (torch.arange(36.0) * 2.4).sin().view(6, 6)).softmax(-1)
    pipeline = Pipeline(
        parts=Parts(target, GivenDrafter(q), tree, verifier),
        sampling=SamplingSettings(temperature=1.0, max_new_tokens=200),
        run=RunSettings(seed=5, batch=40),
        tokenizer=None,
        ends=frozenset(),
        lossless=True,
    )
    return pipeline, logits.softmax(-1)


def test_sequoias_forecast_from_a_measured_table_holds_within_3_percent() -> None:
    pipeline, _ = on_a_table(Chain(), Recursive(), noise=1.0)
    table = profile(pipeline, PROMPTS, depth=3, width=3, draw=WOR).ranks.table
    tree = Sequoia(acceptance=table, nodes=9, depth=3)
    tau = pipeline.with_parts(tree=tree).generate(PROMPTS, seed=6).acceptance.tau
    assert tau > 2
    assert tau == pytest.approx(expected_tau(tree.shape, table), rel=0.03)


def promise(draft: TokenTree, law: Tensor) -> Tensor:
    """The expected tokens of a draft of the most probable tokens, by the drafter's law [V, V]: [B]."""
    above = draft.tokens.gather(1, draft.parent.clamp(min=0))
    own = law[above, draft.tokens].where(draft.parent >= 0, 1)  # [B, N]
    value = own[:, None].where(draft.ancestors, 1).prod(-1)
    return (value * draft.valid).sum(1)


def test_opt_trees_forecast_holds_within_3_percent_where_the_drafter_knows_the_law() -> None:
    pipeline, law = on_a_table(Dynamic(depth=3, width=8, nodes=8), Match(), noise=0.0)
    ledger = pipeline.open_ledger(PROMPTS, pipeline.sampling)
    cycles = list(pipeline.cycles(PROMPTS, ledger, pipeline.sampling, seed=7))[1:]
    forecast = torch.cat([promise(cycle.draft, law) for cycle in cycles])
    measured = torch.cat([cycle.verdict.count for cycle in cycles]).double()
    assert len(forecast) > 2000 and float(measured.mean()) > 2
    assert float(measured.mean()) == pytest.approx(float(forecast.mean()), rel=0.03)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: optimal_shape([], 3, 2), "sometimes accepted"),
        (lambda: optimal_shape([[0.0], [0.5]], 3, 2), "sometimes accepted"),
        (lambda: optimal_shape([[0.0, 0.5]], 1, 2), "at least one path"),
        (lambda: optimal_shape([[1.5]], 3, 2), "between 0 and 1"),
        (lambda: optimal_shape(PAPER, 0, 2), "at least one node"),
        (lambda: optimal_shape(PAPER, 3, 0), "depth of at least 1"),
        (lambda: optimal_product_shape([[]], 3), "sometimes accepted"),
        (lambda: fastest_shape(PAPER, draft_seconds=0, target_seconds={1: 1.0}, depth=2), "two nodes or more"),
    ],
)
def test_broken_tables_are_refused(build: object, says: str) -> None:
    with pytest.raises(InputError, match=says):
        build()  # type: ignore[operator]
