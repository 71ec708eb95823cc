"""Drafters that work while the target scores, or on another device, as a specframe plugin; imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafters `ahead` and `placed`."""
    register(
        "drafter",
        "ahead",
        "specframe_ahead.ahead:Ahead",
        summary="another drafter, which drafts the next chain while the target scores the last one",
    )
    register(
        "drafter",
        "placed",
        "specframe_ahead.placed:Placed",
        summary="another drafter, on a device of its own",
    )
