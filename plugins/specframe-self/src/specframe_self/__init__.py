"""Drafts from the target's own parts, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl

COMPONENTS = (
    (
        "drafter",
        "del",
        "layers.dynamic_exit:DEL",
        "the target's first layers; how many, and how long a draft, is chosen by context",
    ),
    (
        "drafter",
        "swift",
        "layers.skipping:SWIFT",
        "the target without some attentions and MLPs; which, is searched while decoding",
    ),
    (
        "drafter",
        "kangaroo",
        "kangaroo.drafter:Kangaroo",
        "the target's first layers and a trained adapter; the verification starts above them",
    ),
    (
        "drafter",
        "longspec",
        "longspec.drafter:LongSpec",
        "constant memory: attention to a window, and to the keys and values of the target's last layer",
    ),
    ("sight", "window", "selections.window:SinkWindow", "StreamingLLM: the first tokens and the newest ones"),
    (
        "sight",
        "chunks",
        "selections.chunks:KeyChunks",
        "TriForce: the chunks whose keys fit the newest query, chosen anew now and then",
    ),
    ("sight", "snapkv", "selections.snapkv:SnapKV", "SnapKV: the tokens that the end of the prompt looks at"),
    (
        "sight",
        "verified",
        "selections.verified:Verified",
        "SparseSpec, SpecAttn: what the last verification attended to most, chosen anew every cycle",
    ),
    (
        "sight",
        "speckv",
        "selections.speckv:SpecKV",
        "SpecKV: the tokens that the end of the prompt and a likely answer look at",
    ),
    (
        "sight",
        "upper",
        "selections.upper:UpperPlane",
        "QuantSpec: all tokens, by the upper 4 of 8 bits of keys and values",
    ),
    (
        "drafter",
        "excerpt",
        "excerpt.excerpt:Excerpt",
        "RAPID: a drafter that reads the pieces of a long prompt that fit its question, in place of all of it",
    ),
    ("selection", "bm25", "excerpt.selection:Bm25Pieces", "the pieces of a prompt that fit its question by BM25"),
    (
        "selection",
        "embeddings",
        "excerpt.selection:EmbeddedPieces",
        "the pieces of a prompt that fit its question by the cosine between mean embeddings",
    ),
    (
        "selection",
        "specpc",
        "excerpt.specpc:AttendedTokens",
        "the tokens of a prompt that a small model attends to at its end (SpecPC)",
    ),
    (
        "verifier",
        "rapid",
        "excerpt.margin:Rapid",
        "lossy: the target's distribution moved towards what a drafter of excerpts knows better (RAPID)",
    ),
)
"""Kinds, names, places in this package, and summaries."""


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the components of the table."""
    for kind, name, place, summary in COMPONENTS:
        register(kind, name, f"specframe_self.{place}", summary=summary)
