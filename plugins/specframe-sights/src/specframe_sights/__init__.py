"""Sights, the committed tokens that a draft sees, as a specframe plugin; importing it imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the sights `window`, `chunks`, `snapkv`, `verified`, `speckv` and `upper`."""
    register(
        "sight",
        "window",
        "specframe_sights.window:SinkWindow",
        summary="StreamingLLM: the first tokens and the newest ones",
    )
    register(
        "sight",
        "chunks",
        "specframe_sights.chunks:KeyChunks",
        summary="TriForce: the chunks whose keys fit the newest query, chosen anew now and then",
    )
    register(
        "sight",
        "snapkv",
        "specframe_sights.snapkv:SnapKV",
        summary="SnapKV: the tokens that the end of the prompt looks at",
    )
    register(
        "sight",
        "verified",
        "specframe_sights.verified:Verified",
        summary="SparseSpec, SpecAttn: what the last verification attended to most, chosen anew every cycle",
    )
    register(
        "sight",
        "speckv",
        "specframe_sights.speckv:SpecKV",
        summary="SpecKV: the tokens that the end of the prompt and a likely answer look at",
    )
    register(
        "sight",
        "upper",
        "specframe_sights.upper:UpperPlane",
        summary="QuantSpec: all tokens, by the upper 4 of 8 bits of keys and values",
    )
