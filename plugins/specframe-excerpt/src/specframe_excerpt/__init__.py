"""Drafts from an excerpt of the prompt, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.recipes.discovery import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafter `excerpt`, the selections `bm25`, `embeddings` and `specpc`, and the verifier `rapid`."""
    register(
        "drafter",
        "excerpt",
        "specframe_excerpt.excerpt:Excerpt",
        summary="RAPID: a drafter that reads the pieces of a long prompt that fit its question, in place of all of it",
    )
    register(
        "selection",
        "bm25",
        "specframe_excerpt.selection:Bm25Pieces",
        summary="the pieces of a prompt that fit its question by BM25",
    )
    register(
        "selection",
        "embeddings",
        "specframe_excerpt.selection:EmbeddedPieces",
        summary="the pieces of a prompt that fit its question by the cosine between mean embeddings",
    )
    register(
        "selection",
        "specpc",
        "specframe_excerpt.specpc:AttendedTokens",
        summary="the tokens of a prompt that a small model attends to at its end (SpecPC)",
    )
    register(
        "verifier",
        "rapid",
        "specframe_excerpt.margin:Rapid",
        summary="lossy: the target's distribution moved towards what a drafter of excerpts knows better (RAPID)",
    )
