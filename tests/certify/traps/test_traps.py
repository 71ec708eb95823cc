"""Everything that is known to lose losslessness, caught, and with the error it is known to have."""

import pytest

from specframe.certify.compositions.audit import audit_drafts
from specframe.certify.compositions.emission import Emission
from specframe.decoding.session import Parts
from specframe.sampling.laws import Sampling
from specframe.testing import GivenTarget
from tests.certify.traps import traps, traps_bottom_up
from tests.certify.traps.traps import Trap

TRAPS = [*traps.TRAPS, *traps_bottom_up.TRAPS]
"""Rules that look at one token at a time, and at more."""
CONTROLS = [*traps.CONTROLS, *traps_bottom_up.CONTROLS]
SAMPLED = Sampling(temperature=1.0)
BUDGETS = {"10": 60_000, "25": 60_000, "10, match": 10_000, "24": 60_000}
"""Where running everything takes minutes: the likeliest branches show enough."""
ROUNDED = 5.1e-5


def compare(trap: Trap):
    emission = Emission(trap.row, lambda: parts(trap), SAMPLED, trap.length + 1)
    return emission.compare(budget=BUDGETS.get(trap.row, 300_000))


def parts(trap: Trap) -> Parts:
    drafter, tree, verifier = trap.make()
    return Parts(GivenTarget(trap.p), drafter, tree, verifier)


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.row)
def test_a_trap_is_caught_with_its_error(trap):
    comparison = compare(trap)
    if trap.row in BUDGETS:
        assert 0.01 < comparison.tv <= comparison.bound
    else:
        assert comparison.enumeration.exhausted
        assert comparison.tv == pytest.approx(trap.joint, abs=ROUNDED)
    assert comparison.prefix and comparison.worst[: len(comparison.prefix)] is not None
    if trap.length > 1:
        assert comparison.first_tv < comparison.tv


@pytest.mark.parametrize("control", CONTROLS, ids=lambda trap: trap.row)
def test_what_only_looks_broken_passes(control):
    comparison = compare(control)
    assert comparison.tv < 1e-12
    assert comparison.prefix == ()
    assert comparison.enumeration.exhausted or control.row in BUDGETS


@pytest.mark.parametrize("trap", [*TRAPS, *CONTROLS], ids=lambda trap: trap.row)
def test_the_audit_finds_the_lying_drafter(trap):
    audit = audit_drafts(lambda: parts(trap), SAMPLED)
    assert audit.enumeration.exhausted
    assert audit.passed is not trap.wrong
    if trap.wrong:
        assert audit.findings[0].tv == audit.tv > 0.04
        assert str(audit.findings[0]).startswith("slot ")


def test_the_audit_names_the_slot():
    trap = next(trap for trap in TRAPS if trap.row == "40")
    audit = audit_drafts(lambda: parts(trap), SAMPLED)
    assert [finding.slot for finding in audit.findings] == ["slot 2 below the root, after the siblings [3] (drawn iid)"]
    assert audit.findings[0].actual == pytest.approx((4 / 9, 3 / 9, 2 / 9, 0))
