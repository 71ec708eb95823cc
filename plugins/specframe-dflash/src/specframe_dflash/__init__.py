"""DFlash's and DSpark's drafters as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.recipes.discovery import Register


COMPONENTS = [
    (
        "drafter",
        "dflash",
        "dflash:DFlash",
        "parallel: a block of tokens in one forward pass, from fused features of the target",
    ),
    (
        "drafter",
        "dspark",
        "dspark:DSpark",
        "DFlash's block, made a tree's: each node's own bias for what follows its token",
    ),
    ("loss", "d-pace", "d_pace:DPace", "another loss, a level weighed by how much of a draft depends on it"),
    ("rollout", "anchored-blocks", "rollout:AnchoredBlocks", "DFlash: blocks that begin at random positions of a text"),
]


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafters `dflash` and `dspark`, the rollout `anchored-blocks` and the loss `d-pace`."""
    for kind, name, where, summary in COMPONENTS:
        register(kind, name, f"specframe_dflash.{where}", summary=summary)
