"""llama.cpp as contestants of the bench; importing this package imports neither torch nor llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.recipes.discovery import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the contestants `llamacpp` and `llamacpp-ngram`."""
    where = "specframe_llamacpp.contestants"
    register("contestant", "llamacpp", f"{where}:LlamaCpp", summary="llama.cpp on the target's GGUF file")
    register("contestant", "llamacpp-ngram", f"{where}:LlamaCppNgram", summary="the same with its n-gram speculation")
