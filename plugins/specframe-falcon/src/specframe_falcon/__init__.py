"""Falcon's drafter as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.kernel.discovery import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafter `falcon`."""
    register(
        "drafter",
        "falcon",
        "specframe_falcon.drafter:Falcon",
        summary="semi-autoregressive: an LSTM and one decoder layer predict a block of features a forward pass",
    )
