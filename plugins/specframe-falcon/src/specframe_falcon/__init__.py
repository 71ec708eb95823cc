"""Falcon's drafter and its training as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafter `falcon` and the rollout `glancing`."""
    register(
        "drafter",
        "falcon",
        "specframe_falcon.drafter:Falcon",
        summary="semi-autoregressive: an LSTM and one decoder layer predict a block of features a forward pass",
    )
    register(
        "rollout",
        "glancing",
        "specframe_falcon.glancing:Glancing",
        summary="Falcon's coupled sequential glancing: a second forward pass on corrected predictions",
    )
