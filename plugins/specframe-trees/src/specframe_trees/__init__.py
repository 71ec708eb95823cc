"""Tree policies of single papers as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.plugin import Register

TREES = (
    ("adaptive", "adaptive:Adaptive", "as deep as pays, by recent acceptance and costs"),
    ("beam", "beam:Beam", "RSD-S: a stochastic beam, siblings without replacement"),
    ("dyspec", "dyspec:DySpec", "DySpec: sampled, grown where tokens are most likely reached"),
    (
        "goodput",
        "goodput:Goodput",
        "SmartSpec: as deep as pays for all rows together, by acceptance and measured costs",
    ),
    ("greedy", "greedy:Greedy", "the most probable tokens and one draw; contains SpecHub"),
    ("sequoia", "sequoia:Sequoia", "Sequoia: the best shape for measured acceptance"),
)
"""Names, places in this package, and summaries."""


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the tree policies."""
    for name, place, summary in TREES:
        register("tree", name, f"specframe_trees.{place}", summary=summary)
