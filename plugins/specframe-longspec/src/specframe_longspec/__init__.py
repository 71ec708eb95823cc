"""LongSpec's drafter as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafter `longspec`."""
    register(
        "drafter",
        "longspec",
        "specframe_longspec.drafter:LongSpec",
        summary="constant memory: attention to a window, and to the keys and values of the target's last layer",
    )
