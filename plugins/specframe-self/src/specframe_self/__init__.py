"""Drafters made of the target's own parts; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafters, KV selections and verifiers that use the target's own parts."""
    register(
        "drafter",
        "del",
        "specframe_self.layers.dynamic_exit:DEL",
        summary="the target's first layers; how many, and how long a draft, is chosen by context",
    )
    register(
        "drafter",
        "swift",
        "specframe_self.layers.skipping:SWIFT",
        summary="the target without some attentions and MLPs; which, is searched while decoding",
    )
    register(
        "drafter",
        "kangaroo",
        "specframe_self.kangaroo.drafter:Kangaroo",
        summary="the target's first layers and a trained adapter; the verification starts above them",
    )
    register(
        "drafter",
        "longspec",
        "specframe_self.longspec.drafter:LongSpec",
        summary="constant memory: attention to a window, and to the keys and values of the target's last layer",
    )
    register(
        "kv_selection",
        "window",
        "specframe_self.selections.window:SinkWindow",
        summary="StreamingLLM: the first tokens and the newest ones",
    )
    register(
        "kv_selection",
        "chunks",
        "specframe_self.selections.chunks:KeyChunks",
        summary="TriForce: the chunks whose keys fit the newest query, chosen anew now and then",
    )
    register(
        "kv_selection",
        "snapkv",
        "specframe_self.selections.snapkv:SnapKV",
        summary="SnapKV: the tokens that the end of the prompt looks at",
    )
    register(
        "kv_selection",
        "verified",
        "specframe_self.selections.verified:Verified",
        summary="SparseSpec, SpecAttn: what the last verification attended to most, chosen anew every cycle",
    )
    register(
        "kv_selection",
        "speckv",
        "specframe_self.selections.speckv:SpecKV",
        summary="SpecKV: the tokens that the end of the prompt and a likely answer look at",
    )
    register(
        "kv_selection",
        "upper",
        "specframe_self.selections.upper:UpperHalf",
        summary="QuantSpec: all tokens, by the upper 4 of 8 bits of keys and values",
    )
    register(
        "drafter",
        "excerpt",
        "specframe_self.excerpt.excerpt:Excerpt",
        summary="RAPID: a drafter that reads the pieces of a long prompt that fit its question, in place of all of it",
    )
    register(
        "selection",
        "bm25",
        "specframe_self.excerpt.selection:Bm25Pieces",
        summary="the pieces of a prompt that fit its question by BM25",
    )
    register(
        "selection",
        "embeddings",
        "specframe_self.excerpt.selection:EmbeddedPieces",
        summary="the pieces of a prompt that fit its question by the cosine between mean embeddings",
    )
    register(
        "selection",
        "specpc",
        "specframe_self.excerpt.specpc:AttendedTokens",
        summary="the tokens of a prompt that a small model attends to at its end (SpecPC)",
    )
    register(
        "verifier",
        "rapid",
        "specframe_self.excerpt.margin:Rapid",
        summary="lossy: the target's distribution moved towards what a drafter of excerpts knows better (RAPID)",
    )
