"""Scaling laws of drafters, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the command `scaling`."""
    register(
        "command",
        "scaling",
        "specframe_scaling.command:scaling",
        summary="fit how tau and speed grow with training, and plan a drafter under a budget",
    )
