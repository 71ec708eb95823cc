"""Reading of GGUF files; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the reader of GGUF files."""
    register(
        "extension", "gguf", "specframe_gguf.reader:OpenedGGUF", summary="the reader of GGUF files, as models are named"
    )
    register(
        "extension",
        "check-gguf",
        "specframe_gguf.engine:run",
        summary="llama.cpp with an exported drafter, for `specframe export --to gguf --check`",
    )
