"""Multi-token prediction heads as drafters, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.recipes.discovery import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafter `mtp`."""
    register(
        "drafter",
        "mtp",
        "specframe_mtp.drafter:MTP",
        summary="autoregressive: the head for the token after next that ships with a target, fed with its own output",
    )
