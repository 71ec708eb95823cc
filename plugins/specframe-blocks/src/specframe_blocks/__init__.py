"""Drafters that draft a block of tokens in one forward pass; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafters of blocks, and the rollouts and losses that train them."""
    register(
        "drafter",
        "dflash",
        "specframe_blocks.dflash.dflash:DFlash",
        summary="parallel: a block of tokens in one forward pass, from fused features of the target",
    )
    register(
        "drafter",
        "dspark",
        "specframe_blocks.dflash.dspark:DSpark",
        summary="DFlash's block, made a tree's: each node's own bias for what follows its token",
    )
    register(
        "loss",
        "d-pace",
        "specframe_blocks.dflash.d_pace:DPace",
        summary="another loss, a level weighed by how much of a draft depends on it",
    )
    register(
        "rollout",
        "anchored-blocks",
        "specframe_blocks.dflash.rollout:AnchoredBlocks",
        summary="DFlash: blocks that begin at random positions of a text",
    )
    register(
        "drafter",
        "mtp",
        "specframe_blocks.mtp.drafter:MTP",
        summary="autoregressive: the head for the token after next that ships with a target, fed with its own output",
    )
