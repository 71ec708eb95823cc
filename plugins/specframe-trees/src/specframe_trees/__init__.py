"""Tree policies and what judges and prepares trees, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl

COMPONENTS = (
    ("tree", "adaptive", "adaptive:Adaptive", "as deep as pays, by recent acceptance and costs"),
    ("tree", "beam", "beam:Beam", "RSD-S: a stochastic beam, siblings without replacement"),
    ("tree", "dyspec", "dyspec:DySpec", "DySpec: sampled, grown where tokens are most likely reached"),
    (
        "tree",
        "goodput",
        "goodput:Goodput",
        "SmartSpec: as deep as pays for all rows together, by acceptance and measured costs",
    ),
    ("tree", "greedy", "greedy:Greedy", "the most probable tokens and one draw; contains SpecHub"),
    ("tree", "sequoia", "sequoia:Sequoia", "Sequoia: the best shape for measured acceptance"),
    ("verifier", "kseq", "spectr.kseq:KSeq", "SpecTr's K-SEQ: independent siblings against one common test"),
    ("verifier", "transport", "spectr.transport:Transport", "siblings by twos, accepted almost as often as can be"),
    (
        "drafter",
        "ahead",
        "ahead.ahead:Ahead",
        "another drafter, which drafts the next chain while the target scores the last one",
    ),
    ("drafter", "placed", "ahead.placed:Placed", "another drafter, on a device of its own"),
)
"""Kinds, names, places in this package, and summaries."""


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the components of the table."""
    for kind, name, place, summary in COMPONENTS:
        register(kind, name, f"specframe_trees.{place}", summary=summary)
