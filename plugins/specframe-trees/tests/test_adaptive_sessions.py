"""Adaptive drafts in sessions: rows on their own, and certified over cycles that remember."""

from __future__ import annotations

import pytest
import torch
from adaptive_parts import DEPTH, WARM, Q, begin, depth_of, linear, observe

from specframe.certify.compositions.emission import Comparison, Emission
from specframe.components.targets.table import TableTarget
from specframe.components.trees.recording import WatchedTree
from specframe.components.verifiers.block import Block
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.components.verifiers.traversal import Traversal
from specframe.decoding.pipeline import Pipeline
from specframe.decoding.session import Parts
from specframe.decoding.settings import RunSettings, SamplingSettings
from specframe.kernel.interfaces import Observer, Verifier
from specframe.kernel.types import Context, Draw, TokenTree
from specframe.testing import GivenDrafter, GivenTarget, audit
from specframe_trees.adaptive import Adaptive
from tests.certify.traps.traps_drafting import own_law
from tests.components.path_drafter import Ranked

END = 3
LAW = torch.tensor([[0.5, 0.27, 0.2, 0.03], [0.1, 0.6, 0.27, 0.03], [0.3, 0.3, 0.37, 0.03]], dtype=torch.float64)
GUESS = torch.tensor([[0.6, 0.3, 0.1, 0.0], [0.2, 0.2, 0.6, 0.0], [0.3, 0.4, 0.3, 0.0]], dtype=torch.float64)


class Noted(Adaptive):
    """Remembers how deep its drafts were, admissions left out."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.depths: list[list[int]] = []

    def grow(self, *args: object) -> TokenTree:
        draft = super().grow(*args)  # type: ignore[arg-type]
        self.depths.append(depth_of(draft).tolist())
        return draft


def nervous(**options: object) -> Noted:
    """A policy that changes its mind often."""
    return Noted(**({"costs": [1, 1.3, 1.6, 1.9], "depth": 3, "memory": 4.0, "draw": Draw.IID} | options))


def pipeline(tree: Adaptive, batch: int) -> Pipeline:
    return Pipeline(
        parts=Parts(GivenTarget(LAW[[0, 1, 2, 0]]), GivenDrafter(GUESS[[0, 1, 2, 0]]), tree, Recursive()),
        sampling=SamplingSettings(temperature=1.0, max_new_tokens=60),
        run=RunSettings(seed=5, batch=batch),
        tokenizer=None,
        ends=frozenset({END}),
        lossless=True,
    )


@pytest.mark.parametrize("draw", ["top", "iid", "without_replacement"])
def test_a_row_does_not_depend_on_its_neighbours_nor_on_earlier_sessions(draw: str) -> None:
    texts = [[0], [1, 2, 0], [2, 2], [1]]
    tree = nervous(draw=Draw[draw.upper()], widths=(2, 1), costs=[1, 1.2, 1.3, 1.4])
    together = pipeline(tree, 4)
    first = together.generate(texts).tokens
    assert any(len(set(depths)) > 1 for depths in tree.depths), "rows of a batch differ"
    assert min(map(len, tree.depths)) < 4, "rows leave the batch"
    assert together.generate(texts).tokens == first
    assert pipeline(tree, 1).generate(texts).tokens == first


def test_a_draft_of_no_levels_costs_no_forward_and_a_batch_is_no_deeper_than_its_deepest_row() -> None:
    calls = 0
    drafter = GivenDrafter(Q)

    def expand(frontier: object) -> object:
        nonlocal calls
        calls += 1
        return drafter.expand(frontier)  # type: ignore[arg-type]

    policy = Adaptive(costs=[1.0, 3.0, 5.0], depth=2)
    tree = policy.grow(expand, torch.tensor([0, 1]), Context(WARM, Ranked()))  # type: ignore[arg-type]
    assert (calls, tree.tokens.shape[1], tree.levels) == (0, 1, 0)
    policy = Adaptive(costs=linear(0.02, 0.1), depth=DEPTH)
    begin(policy, 2)
    length = torch.tensor([2, 0])
    for _ in range(8):
        calls = 0
        tree = policy.grow(expand, torch.tensor([0, 1]), Context(WARM, Ranked()))  # type: ignore[arg-type]
        observe(policy, tree, depth_of(tree) * (length > 0))
    deep, shallow = depth_of(tree).tolist()
    assert deep > shallow and calls == deep == tree.levels


def test_a_watched_observer_is_one() -> None:
    from specframe.components.trees.fixed import Chain

    for policy, observes in ((nervous(), True), (Chain(), False)):
        assert isinstance(policy, Observer) is observes
        assert isinstance(WatchedTree(policy, lambda expand: expand), Observer) is observes


# --- the certificate ------------------------------------------------------------------------------------


def certify(make: type[Noted], verifier: type[Verifier], length: int, **options: object) -> tuple[Comparison, set[int]]:
    """The law of the first tokens over cycles, and which depths were drafted on the way."""
    policies: list[Noted] = []

    def parts() -> Parts:
        policies.append(make(**({"costs": [1, 1.3, 1.6, 1.9], "depth": 3, "memory": 4.0, "draw": Draw.IID} | options)))
        return Parts(TableTarget(vocab=2, order=2, seed=3), GivenDrafter(Q), policies[-1], verifier())

    comparison = Emission("", parts, WARM, length).compare()
    assert comparison.enumeration.exhausted and comparison.enumeration.rows > 1
    return comparison, {depth for policy in policies for depths in policy.depths for depth in depths}


@pytest.mark.parametrize(("verifier", "length"), [(Recursive, 6), (Match, 6), (Block, 5), (Traversal, 5)])
def test_cycles_that_remember_are_lossless(verifier: type[Verifier], length: int) -> None:
    comparison, depths = certify(Noted, verifier, length)
    assert comparison.tv < 1e-12
    assert len(depths) > 2, "the past decided"


def test_trees_that_remember_are_lossless() -> None:
    options = {"widths": (2, 1), "draw": Draw.WITHOUT_REPLACEMENT, "costs": [1, 1.3, 1.65], "depth": 2}
    comparison, depths = certify(Noted, Recursive, 5, **options)
    assert comparison.tv < 1e-12
    assert depths == {1, 2}


class Peeking(Noted):
    """Leaves out drawn tokens, and all below, that it thinks less likely to be accepted than was usual lately."""

    def grow(self, *args: object) -> TokenTree:
        from dataclasses import replace

        tree = super().grow(*args)
        if tree.levels == 0:
            return tree
        usual = torch.nn.functional.pad(self._shares(tree.tokens[:, 0])[:, : tree.levels], (1, 0))
        return replace(tree, valid=tree.valid & (own_law(tree) >= usual).cummin(1).values)


def test_deciding_by_a_drawn_token_is_caught() -> None:
    comparison, _ = certify(Peeking, Recursive, 4)
    assert comparison.tv > 0.01
    assert not audit(
        lambda: GivenDrafter(GUESS[[0, 1, 2, 0]]), Peeking(costs=[1, 1.1, 1.2], depth=2, draw=Draw.IID), sampling=WARM
    ).passed
