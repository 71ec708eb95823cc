"""EAGLE's drafter as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe import hookimpl

if TYPE_CHECKING:
    from specframe.kernel.plugins.hookspecs import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafter `eagle`."""
    register(
        "drafter",
        "eagle",
        "specframe_eagle.drafter:Eagle",
        summary="autoregressive on features: one decoder layer predicts the target's next feature",
    )
