"""Blocks of tokens in one forward pass, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl

COMPONENTS = (
    (
        "drafter",
        "dflash",
        "dflash.dflash:DFlash",
        "parallel: a block of tokens in one forward pass, from fused features of the target",
    ),
    (
        "drafter",
        "dspark",
        "dflash.dspark:DSpark",
        "DFlash's block, made a tree's: each node's own bias for what follows its token",
    ),
    ("loss", "d-pace", "dflash.d_pace:DPace", "another loss, a level weighed by how much of a draft depends on it"),
    (
        "rollout",
        "anchored-blocks",
        "dflash.rollout:AnchoredBlocks",
        "DFlash: blocks that begin at random positions of a text",
    ),
    (
        "drafter",
        "mtp",
        "mtp.drafter:MTP",
        "autoregressive: the head for the token after next that ships with a target, fed with its own output",
    ),
)
"""Kinds, names, places in this package, and summaries."""


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the components of the table."""
    for kind, name, place, summary in COMPONENTS:
        register(kind, name, f"specframe_blocks.{place}", summary=summary)
