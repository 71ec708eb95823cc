"""Scaling laws of drafters, and llama.cpp for comparison; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the command `scaling` and the contestants `llamacpp` and `llamacpp-ngram`."""
    register(
        "command",
        "scaling",
        "specframe_scaling.command:scaling",
        summary="fit how tau and speed grow with training, and plan a drafter under a budget",
    )
    where = "specframe_scaling.llamacpp.contestants"
    register("contestant", "llamacpp", f"{where}:LlamaCpp", summary="llama.cpp on the target's GGUF file")
    register("contestant", "llamacpp-ngram", f"{where}:LlamaCppNgram", summary="llama.cpp with its n-gram speculation")
