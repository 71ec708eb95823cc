"""Drafters that choose which of the target's own layers draft, as a specframe plugin; importing it imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.recipes.discovery import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafters `del` and `swift`."""
    register(
        "drafter",
        "del",
        "specframe_layers.dynamic_exit:DEL",
        summary="the target's first layers; how many, and how long a draft, is chosen by context",
    )
    register(
        "drafter",
        "swift",
        "specframe_layers.skipping:SWIFT",
        summary="the target without some attentions and MLPs; which, is searched while decoding",
    )
