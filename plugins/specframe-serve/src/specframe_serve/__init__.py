"""`specframe serve` as a specframe plugin; importing this package imports no torch and no web server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.recipes.discovery import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the command `serve`."""
    register(
        "command",
        "serve",
        "specframe_serve.command:serve",
        summary="serve OpenAI clients over HTTP, decoding their requests together",
    )
