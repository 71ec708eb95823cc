"""CORAL's parts as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl

COMPONENTS = [
    ("loss", "csra", "csra:CSRA", "CORAL: InfoNCE between the features of a rollout's steps"),
    (
        "head",
        "router",
        "router:Router",
        "CORAL: a router selects the rows of the LM head that are read",
    ),
    ("loss", "routing", "routing:RoutingLoss", "CORAL: cross-entropy between the target's group masses and the router"),
    ("rollout", "routing", "routing:RoutingRollout", "another rollout, with the router's choice in place of logits"),
]


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the losses `csra` and `routing`, the head `router` and the rollout `routing`."""
    for kind, name, where, summary in COMPONENTS:
        register(kind, name, f"specframe_coral.{where}", summary=summary)
