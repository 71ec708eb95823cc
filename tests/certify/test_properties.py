"""Hypothesis looks for laws, trees and settings that the fixed cases do not have."""

import torch
from hypothesis import HealthCheck, given, settings

from specframe.certify.compositions.emission import Emission
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.types import Context, Draw
from specframe.sampling.laws import Sampling
from specframe.sampling.lazy import AllLaws
from specframe.sampling.random import SeededRandom
from specframe.testing import GivenDrafter, GivenTarget, compare_cycle, strategies
from specframe.testing.verifiers import check_rows, check_verdict
from tests.certify.traps.instances import Rejection

few = settings(derandomize=True, suppress_health_check=list(HealthCheck))


@few
@given(strategies.policies(), strategies.law_pairs())
def test_recursive_keeps_every_law(tree, laws):
    comparison = compare_cycle(tree, Recursive(), *laws, budget=60_000)
    assert comparison.tv < 1e-9


@few
@given(strategies.policies(), strategies.law_pairs())
def test_match_keeps_every_law(tree, laws):
    comparison = compare_cycle(tree, Match(), *laws, budget=20_000)
    assert comparison.tv < 1e-9


@few
@given(strategies.policies(), strategies.law_pairs())
def test_ghost_branches_break_nothing(tree, laws):
    # With nothing cut, branches that only rounding opens are run, too: no error, no impossible token.
    p, q = laws
    drafter = GivenDrafter(q)
    for seed in range(3):
        random = SeededRandom(seed, 8)
        draft = tree.grow(
            drafter.expand, torch.zeros(8, dtype=torch.int64), Context(Sampling(temperature=1.0), random.draft)
        )
        check_verdict(draft, p[draft.tokens], Recursive().verify(draft, AllLaws(p[draft.tokens]), random.verify))


@few
@given(strategies.trees(), strategies.law_tables())
def test_any_tree_gives_a_proper_verdict(tree, p):
    for verifier in (Match(), Recursive()):
        check_rows(verifier, tree, p)


@few
@given(strategies.policies(frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT})), strategies.law_pairs())
def test_accepted_lengths_are_those_of_a_second_implementation(tree, laws):
    for verifier in (Recursive(), Rejection()):
        assert compare_cycle(tree, verifier, *laws, budget=60_000).tv < 1e-9


@few
@given(strategies.law_pairs(), strategies.samplings(), strategies.contexts(), strategies.draws())
def test_sessions_keep_every_processed_law(laws, sampling, prompt, draw):
    p, q = laws
    parts = Parts(GivenTarget(p), GivenDrafter(q), Chain(depth=1, draw=draw), Recursive())
    emission = Emission("", lambda: parts, sampling, 3, tuple(prompt), frozenset({2}))
    comparison = emission.compare(budget=30_000)
    assert comparison.tv < 1e-9
