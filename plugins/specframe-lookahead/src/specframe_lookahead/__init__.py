"""Drafts from the target's own logits, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafters `lookahead` and `logitspec`."""
    register(
        "drafter",
        "lookahead",
        "specframe_lookahead.lookahead:Lookahead",
        summary="n-grams from Jacobi iterations in the same forward pass",
    )
    register(
        "drafter",
        "logitspec",
        "specframe_lookahead.logitspec:LogitSpec",
        summary="the last logits' runners-up, and copies behind them",
    )
