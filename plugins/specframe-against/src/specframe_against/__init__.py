"""Certificates of other people's acceptance functions, as a specframe plugin; importing this imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the enumeration of `specframe certify --against`."""
    register(
        "extension",
        "against",
        "specframe_against.foreign:Foreign",
        summary="the enumeration of `specframe certify --against FILE.py:FUNCTION`",
    )
