"""Certificates of other people's acceptance functions and servers; importing this package imports no torch."""

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
    register(
        "extension",
        "server",
        "specframe_against.server:certify_server",
        summary="the test of a running server by `specframe certify --against URL`",
    )
