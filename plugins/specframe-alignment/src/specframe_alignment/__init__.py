"""Training that aligns a drafter with its target, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.plugin import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the loss `tvd-plus` and the rollout `replay`."""
    register(
        "loss",
        "tvd-plus",
        "specframe_alignment.tvd:TVDPlus",
        summary="TVD++: total variation's policy gradient with a normalised advantage, in exact expectation",
    )
    register(
        "rollout",
        "replay",
        "specframe_alignment.replay:Replay",
        summary="Draft-OPD: along the drafter's own drafts, from where verification rejected them",
    )
