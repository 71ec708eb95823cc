"""Custom decoding loops for transformers; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the loop of `specframe.decoder`."""
    register(
        "extension",
        "decoder",
        "specframe_transformers.loop:make_loop",
        summary="the decoding loop of `specframe.decoder`, for model.generate(custom_generate=...)",
    )
    register(
        "extension",
        "check-transformers",
        "specframe_transformers.engine:run",
        summary="assisted generation with an exported model, for `specframe export --to transformers --check`",
    )
    register(
        "extension",
        "check-openvino",
        "specframe_transformers.genai:run",
        summary="OpenVINO GenAI with an exported model, for `specframe export --to openvino --check`",
    )
