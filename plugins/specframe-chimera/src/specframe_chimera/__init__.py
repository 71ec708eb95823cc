"""Chimera as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafter `chimera`."""
    register(
        "drafter",
        "chimera",
        "specframe_chimera.drafter:Chimera",
        summary="a trigram encoder and one decoder layer over the target's states; a residual head per level",
    )
