"""Kangaroo as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.recipes.discovery import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafter `kangaroo`."""
    register(
        "drafter",
        "kangaroo",
        "specframe_kangaroo.drafter:Kangaroo",
        summary="the target's first layers and a trained adapter; the verification starts above them",
    )
