"""Tree policies, verifiers, and wrappers of drafters; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the tree policies, the verifiers, and the drafters that wrap others."""
    register(
        "tree",
        "adaptive",
        "specframe_trees.adaptive:Adaptive",
        summary="as deep as pays, by recent acceptance and costs",
    )
    register(
        "tree", "beam", "specframe_trees.beam:Beam", summary="RSD-S: a stochastic beam, siblings without replacement"
    )
    register(
        "tree",
        "dyspec",
        "specframe_trees.dyspec:DySpec",
        summary="DySpec: sampled, grown where tokens are most likely reached",
    )
    register(
        "tree",
        "goodput",
        "specframe_trees.goodput:Goodput",
        summary="SmartSpec: as deep as pays for all rows together, by acceptance and measured costs",
    )
    register(
        "tree",
        "greedy",
        "specframe_trees.greedy:Greedy",
        summary="the most probable tokens and one draw; contains SpecHub",
    )
    register(
        "tree", "sequoia", "specframe_trees.sequoia:Sequoia", summary="Sequoia: the best shape for measured acceptance"
    )
    register(
        "verifier",
        "kseq",
        "specframe_trees.spectr.kseq:KSeq",
        summary="SpecTr's K-SEQ: independent siblings against one common test",
    )
    register(
        "verifier",
        "transport",
        "specframe_trees.spectr.transport:Transport",
        summary="siblings by twos, accepted almost as often as can be",
    )
    register(
        "drafter",
        "ahead",
        "specframe_trees.ahead.ahead:Ahead",
        summary="another drafter, which drafts the next chain while the target scores the last one",
    )
    register(
        "drafter", "placed", "specframe_trees.ahead.placed:Placed", summary="another drafter, on a device of its own"
    )
