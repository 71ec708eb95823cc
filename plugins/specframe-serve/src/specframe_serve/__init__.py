"""`specframe serve` as a specframe plugin; importing this package imports no torch and no web server."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the command `serve`."""
    register(
        "command",
        "serve",
        "specframe_serve.command:serve",
        summary="serve OpenAI clients over HTTP, decoding their requests together",
    )
