"""Drafts from a store of texts, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafter `retrieval`, the store `corpus`, and the command `store` that builds one."""
    register(
        "drafter",
        "retrieval",
        "specframe_retrieval.retrieval:Retrieval",
        summary="what followed the last tokens in a store of texts",
    )
    register(
        "store",
        "corpus",
        "specframe_retrieval.corpus:Corpus",
        summary="documents and finished answers, found by what stands before them",
    )
    register(
        "command",
        "store",
        "specframe_retrieval.command:store",
        summary="build a store of texts for drafters that copy from it",
    )
