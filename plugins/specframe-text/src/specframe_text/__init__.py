"""Drafts from text, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl

COMPONENTS = (
    (
        "drafter",
        "lookahead",
        "lookahead.lookahead:Lookahead",
        "n-grams from Jacobi iterations in the same forward pass",
    ),
    ("drafter", "logitspec", "lookahead.logitspec:LogitSpec", "the last logits' runners-up, and copies behind them"),
    ("drafter", "retrieval", "retrieval.retrieval:Retrieval", "what followed the last tokens in a store of texts"),
    ("store", "corpus", "retrieval.corpus:Corpus", "documents and finished answers, found by what stands before them"),
    ("command", "store", "retrieval.command:store", "build a store of texts for drafters that copy from it"),
)
"""Kinds, names, places in this package, and summaries."""


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the components of the table."""
    for kind, name, place, summary in COMPONENTS:
        register(kind, name, f"specframe_text.{place}", summary=summary)
