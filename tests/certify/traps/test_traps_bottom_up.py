"""The rules that look at more than one token at a time, broken: caught, and with the error that is known."""

import pytest

from tests.certify.traps.test_traps import ROUNDED, compare
from tests.certify.traps.traps_bottom_up import CONTROLS, TRAPS


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.row)
def test_a_trap_is_caught_with_its_error(trap):
    comparison = compare(trap)
    assert comparison.enumeration.exhausted
    assert comparison.tv == pytest.approx(trap.joint, abs=ROUNDED)
    assert comparison.prefix
    if trap.length > 1:
        assert comparison.first_tv < comparison.tv


@pytest.mark.parametrize("control", CONTROLS, ids=lambda trap: trap.row)
def test_what_only_looks_broken_passes(control):
    comparison = compare(control)
    assert comparison.tv < 1e-12
    assert comparison.enumeration.exhausted
