"""SpecDec++ as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.plugin import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers head, loss and rollout `acceptance`, and the tree policy `threshold`."""
    register(
        "head",
        "acceptance",
        "specframe_specdecpp.head:AcceptanceHead",
        summary="SpecDec++: another head, and how likely its token is accepted",
    )
    register(
        "loss",
        "acceptance",
        "specframe_specdecpp.loss:AcceptanceLoss",
        summary="SpecDec++: cross-entropy of the predicted acceptance",
    )
    register(
        "rollout",
        "acceptance",
        "specframe_specdecpp.rollout:AcceptanceRollout",
        summary="another rollout, with the confidence of the head acceptance",
    )
    register(
        "tree",
        "threshold",
        "specframe_specdecpp.threshold:Threshold",
        summary="SpecDec++: a chain, stopped when a rejection is likely",
    )
