"""Spoiled tree policies are caught, with the error they are known to have, and the audit finds them alone."""

import math

import pytest
import torch

from specframe.certify.compositions.enumeration import enumerate_outcomes
from specframe.plugin import Context
from specframe.sampling.laws import Sampling
from specframe.sampling.lazy import AllLaws
from specframe.testing import GivenDrafter, audit
from tests.certify.traps.instances import P, Q
from tests.certify.traps.traps_drafting import CONTROLS, TRAPS

SAMPLED = Sampling(temperature=1.0)
LENGTH = 2
ROUNDED = 5.1e-5


def emitted(trap, length):
    """The law of the first `length` tokens over cycles that know no context: what one cycle does, they all do."""
    policy, verifier, drafter = trap.make(), trap.verifier(), GivenDrafter(Q)

    def program(random, rows):
        draft = policy.grow(drafter.expand, torch.zeros(rows, dtype=torch.int64), Context(SAMPLED, random))
        verdict = verifier.verify(draft, AllLaws(P.expand(*draft.tokens.shape, -1)), random)
        tokens = verdict.emitted(draft)[:, :length]
        return tokens.where(torch.arange(tokens.shape[1]) < verdict.count[:, None], -1)

    with torch.inference_mode():
        found = enumerate_outcomes(program, rows=16384)
    assert found.exhausted
    cycle = {tuple(t for t in outcome if t >= 0): mass for outcome, mass in found.law.items()}
    law, pending = {}, [((), 1.0)]
    while pending:
        done, mass = pending.pop()
        if len(done) == length:
            law[done] = law.get(done, 0.0) + mass
        else:
            pending += [((*done, *more)[:length], mass * share) for more, share in cycle.items()]
    return law


def distance(trap, length=LENGTH):
    law = emitted(trap, length)
    wanted = {(a, b)[:length]: 0.0 for a in range(4) for b in range(4)}
    for tokens in wanted:
        wanted[tokens] = math.prod(float(P[t]) for t in tokens)
    return sum(abs(law.get(tokens, 0.0) - mass) for tokens, mass in wanted.items()) / 2


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.row)
def test_a_spoiled_policy_is_caught_with_its_error(trap):
    tv = distance(trap)
    assert tv > 0.01
    if trap.joint is not None:
        assert tv == pytest.approx(trap.joint, abs=ROUNDED)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda trap: trap.row)
def test_what_only_looks_spoiled_passes(control):
    assert distance(control) < 1e-12


@pytest.mark.parametrize("trap", [*TRAPS, *CONTROLS], ids=lambda trap: trap.row)
def test_the_audit_finds_the_spoiled_policy(trap):
    found = audit(lambda: GivenDrafter(Q), trap.make(), sampling=SAMPLED)
    assert found.enumeration.exhausted
    assert found.passed is not trap.wrong
