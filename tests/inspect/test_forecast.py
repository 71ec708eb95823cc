"""Forecasts of tau, a table's and the drafter's own, against what decoding gives."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specframe.components.drafters.none import NoDrafter
from specframe.components.targets.table import TableTarget
from specframe.components.trees.calibration import Calibration
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.trees.optimal import (
    expected_tau,
    optimal_shape,
)
from specframe.components.trees.shape import dotted
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.pipeline import Pipeline
from specframe.decoding.session import Parts
from specframe.decoding.settings import RunSettings, SamplingSettings
from specframe.inspect.forecast import ForecastTree, measure_tau
from specframe.inspect.profile import profile
from specframe.kernel.types import Context, Draw, TokenTree
from specframe.sampling.laws import Sampling
from specframe.sampling.lazy import AllLaws
from specframe.testing import GivenDrafter, enumerate_outcomes
from specframe_trees.sequoia import Sequoia
from tests.components.path_drafter import Ranked

WOR = Draw.WITHOUT_REPLACEMENT
PROMPTS = [[row % 6] for row in range(40)]


def accepted_nodes(tree, p: Tensor, q: Tensor) -> dict[tuple[int, ...], float]:
    """The law of the accepted path of one cycle, where p and q [V] know no context."""
    drafter = GivenDrafter(q)

    def program(random, rows: int) -> Tensor:
        roots = torch.zeros(rows, dtype=torch.int64)
        draft = tree.grow(drafter.expand, roots, Context(Sampling(temperature=1.0), random))
        return Recursive().verify(draft, AllLaws(p.expand(*draft.tokens.shape, -1)), random).path

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


# After token 0 the drafter ranks 0, 1, 2, 3, after any other 1, 2, 3, 0. So paths of first choices are zeros, below
# another choice there are none, and the target's law separates the two.
RANKED = torch.tensor([[0.4, 0.3, 0.2, 0.1], *[[0.1, 0.4, 0.3, 0.2]] * 3], dtype=torch.float64)
LIKELY = torch.tensor([[0.6, 0.2, 0.15, 0.05], *[[0.1, 0.4, 0.3, 0.2]] * 3], dtype=torch.float64)


def test_a_forecast_from_two_tables_is_exact_where_acceptance_is_as_in_them() -> None:
    table, off_path = [[0.6, 0.2, 0.15]], [[], [0.4, 0.3, 0.2]]
    shape = optimal_shape(table, 12, 4, off_path)
    assert shape.depth > 2 and any(any(path[:-1]) for path in shape.paths), "it leaves the first choices, too"
    tree = Fixed(paths=[dotted(path) for path in shape.paths])

    def program(random, rows: int) -> Tensor:
        roots = torch.zeros(rows, dtype=torch.int64)
        draft = tree.grow(GivenDrafter(RANKED).expand, roots, Context(Sampling(temperature=1.0), random))
        return Match().verify(draft, AllLaws(LIKELY[draft.tokens]), random).path

    paths = enumerate_outcomes(program).law
    tau = 1 + sum(mass * sum(node >= 0 for node in path) for path, mass in paths.items())
    assert expected_tau(shape, table, off_path) == pytest.approx(tau, abs=1e-9)
    assert expected_tau(shape, table) > tau + 0.01, "the first table alone expects too much"


def on_a_table(tree, verifier, noise: float) -> tuple[Pipeline, Tensor]:
    """A table target with a drafter that has its law, save for some noise; and the drafter's law [V, V]."""
    target = TableTarget(vocab=6, order=1, sharpness=1.5, seed=4)
    logits = target.logits_after(torch.arange(6)[:, None])
    q = (logits + noise * (torch.arange(36.0) * 2.4).sin().view(6, 6)).softmax(-1)
    return pipeline_of(target, GivenDrafter(q), tree, verifier), q


def pipeline_of(target, drafter, tree, verifier) -> Pipeline:
    return Pipeline(
        parts=Parts(target, drafter, tree, verifier),
        sampling=SamplingSettings(temperature=1.0, max_new_tokens=200),
        run=RunSettings(seed=5, batch=40),
        tokenizer=None,
        ends=frozenset(),
        lossless=True,
    )


def counted(target: TableTarget, texts: int) -> Tensor:
    """A drafter's law [V, V] that was trained on the target's own texts, by counting which token followed which."""
    plain = pipeline_of(target, NoDrafter(), None, Match())
    counts = torch.full((6, 6), 0.5, dtype=torch.float64)
    for text in plain.generate(PROMPTS[:texts], seed=1).tokens:
        counts.index_put_((torch.tensor(text[:-1]), torch.tensor(text[1:])), torch.ones(()).double(), accumulate=True)
    return counts / counts.sum(1, keepdim=True)


@pytest.mark.parametrize(("draw", "verifier"), [(Draw.TOP, Match()), (WOR, Recursive())])
def test_sequoias_forecast_for_a_trained_drafter_holds_within_3_percent(draw: Draw, verifier) -> None:
    target = TableTarget(vocab=6, order=2, sharpness=1.5, seed=4)  # it looks further back than the drafter
    pipeline = pipeline_of(target, GivenDrafter(counted(target, 4)), Chain(), verifier)
    found = profile(pipeline, PROMPTS, depth=3, width=6, draw=draw).ranks
    shape = optimal_shape(found.table, 9, 3, found.off_path.table)
    tree = Fixed(paths=[dotted(path) for path in shape.paths], draw=draw)
    measured = measure_tau(replace(pipeline.with_parts(tree=tree), run=RunSettings(seed=6, batch=40)), PROMPTS)
    assert measured.tau > 2 and measured.error < 0.02 * measured.tau
    assert measured.tau == pytest.approx(expected_tau(shape, found.table, found.off_path.table), rel=0.03)


def expected_tokens(draft: TokenTree, law: Tensor) -> Tensor:
    """The expected tokens of a draft of the most probable tokens, by the drafter's law [V, V]: [B]."""
    above = draft.tokens.gather(1, draft.parent.clamp(min=0))
    own = law[above, draft.tokens].where(draft.parent >= 0, 1)  # [B, N]
    value = own[:, None].where(draft.ancestors, 1).prod(-1)
    return (value * draft.valid).sum(1)


@pytest.mark.parametrize("block", [1, 2])
def test_what_a_drafter_expects_is_read_off_its_proposals(block: int) -> None:
    q = RANKED if block == 1 else torch.stack([RANKED, LIKELY])
    recording = ForecastTree(Dynamic(depth=3, width=3, nodes=7))
    roots = torch.tensor([0, 2])
    draft = recording.grow(GivenDrafter(q).expand, roots, Context(Sampling(), Ranked()))
    expected = recording.expected(draft)
    assert expected.shape == (2, draft.levels)
    if block == 1:
        assert 1 + expected.sum(1) == pytest.approx(expected_tokens(draft, RANKED))
        cube = RANKED**3 / (RANKED**3).sum(1, keepdim=True)
        assert 1 + recording.expected(draft, Calibration((3.0,))).sum(1) == pytest.approx(expected_tokens(draft, cube))
        return
    for row in range(2):  # levels 1 and 2 by the root's proposal, level 3 by that of its parent
        depth, tokens, parent = draft.depth[row], draft.tokens[row], draft.parent[row]
        value = [1.0]
        for node in range(1, draft.tokens.shape[1]):
            source = int(tokens[0] if depth[node] < 3 else tokens[parent[node]])
            value.append(value[parent[node]] * float(q[(int(depth[node]) - 1) % 2, source, tokens[node]]))
        sums = [sum(v for v, d in zip(value, depth.tolist(), strict=True) if d == level) for level in (1, 2, 3)]
        assert expected[row].tolist() == pytest.approx(sums)


def test_opt_trees_forecast_holds_within_3_percent_where_the_drafter_knows_the_law() -> None:
    pipeline, _ = on_a_table(Dynamic(depth=3, width=8, nodes=8), Match(), noise=0.0)
    found = measure_tau(pipeline, PROMPTS)
    assert found.expected is not None and found.tau > 2
    assert found.tau == pytest.approx(1 + sum(found.expected), rel=0.03)


def test_opt_trees_forecast_for_a_trained_drafter_holds_within_3_percent() -> None:
    target = TableTarget(vocab=6, order=1, sharpness=1.5, seed=4)
    pipeline = pipeline_of(target, GivenDrafter(counted(target, 4)), Dynamic(depth=3, width=8, nodes=8), Match())
    found = measure_tau(pipeline, PROMPTS)
    assert found.expected is not None and found.tau == pytest.approx(1 + sum(found.expected), rel=0.03)


@pytest.mark.sampled
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_a_calibrated_forecast_holds_at_any_temperature(temperature: float) -> None:
    pipeline, _ = on_a_table(Dynamic(depth=3, width=8, nodes=8), Match(), noise=0.0)
    pipeline = replace(pipeline, sampling=SamplingSettings(temperature=temperature, max_new_tokens=400))
    calibration = profile(pipeline, PROMPTS[:20], depth=3, width=4).calibration
    assert calibration.powers == pytest.approx([1 / temperature] * len(calibration.powers), rel=0.1)
    raw, found = measure_tau(pipeline, PROMPTS[20:]), measure_tau(pipeline, PROMPTS[20:], calibration)
    assert found.tau == raw.tau and found.expected is not None and raw.expected is not None
    assert found.tau == pytest.approx(1 + sum(found.expected), rel=0.03)
    assert (found.tau == pytest.approx(1 + sum(raw.expected), rel=0.1)) == (temperature == 1)
    own = pipeline.with_parts(tree=Dynamic(depth=3, width=8, nodes=8, calibration=list(calibration.powers)))
    assert measure_tau(own, PROMPTS[20:]).tau == pytest.approx(
        1 + sum(measure_tau(own, PROMPTS[20:], Calibration((9.0,))).expected or []), rel=0.03
    ), "a tree's own calibration goes first"
