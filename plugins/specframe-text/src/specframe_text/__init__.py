"""Drafters that copy or collect text; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafters that copy or collect text, the store and its command."""
    register(
        "drafter",
        "lookahead",
        "specframe_text.lookahead.lookahead:Lookahead",
        summary="n-grams from Jacobi iterations in the same forward pass",
    )
    register(
        "drafter",
        "logitspec",
        "specframe_text.lookahead.logitspec:LogitSpec",
        summary="the last logits' runners-up, and copies after them",
    )
    register(
        "drafter",
        "retrieval",
        "specframe_text.retrieval.retrieval:Retrieval",
        summary="what followed the last tokens in a store of texts",
    )
    register(
        "store",
        "corpus",
        "specframe_text.retrieval.corpus:Corpus",
        summary="documents and finished answers, found by what stands before them",
    )
    register(
        "command",
        "store",
        "specframe_text.retrieval.command:store",
        summary="build a store of texts for drafters that copy from it",
    )
