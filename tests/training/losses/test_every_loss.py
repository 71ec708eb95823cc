"""Every registered loss, plugins' included: its gradients against finite differences, masks and rows."""

from __future__ import annotations

import pytest

from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.recipes.discovery import discover
from specframe.testing import check_loss

NEEDED = {"d-pace": {"loss": CrossEntropy()}, "hybrid": {"loss": CrossEntropy()}}
"""Options without a default."""
DETACHED = {"d-pace", "lk-hybrid", "tvd-plus"}
"""Losses through whose weights no gradient flows: each has a test of its own with the weights held."""
LOSSES = {entry.name: entry for entry in discover().of("loss")}


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_gradients_agree_with_finite_differences(name: str) -> None:
    make = LOSSES[name].load()
    check_loss(lambda: make(**NEEDED.get(name, {})))


def test_what_has_no_differences_is_known() -> None:
    made = {name: entry.load()(**NEEDED.get(name, {})) for name, entry in LOSSES.items()}
    assert {name for name, loss in made.items() if getattr(loss, "detaches", False)} == DETACHED
