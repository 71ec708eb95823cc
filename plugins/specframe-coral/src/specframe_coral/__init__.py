"""CORAL's parts as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the losses `csra` and `routing`, the head `router` and the rollout `routing`."""
    register(
        "loss", "csra", "specframe_coral.csra:CSRA", summary="CORAL: InfoNCE between the features of a rollout's steps"
    )
    register(
        "head",
        "router",
        "specframe_coral.router:Router",
        summary="CORAL: a router selects the rows of the LM head that are read",
    )
    register(
        "loss",
        "routing",
        "specframe_coral.routing:RoutingLoss",
        summary="CORAL: cross-entropy between the target's group masses and the router",
    )
    register(
        "rollout",
        "routing",
        "specframe_coral.routing:RoutingRollout",
        summary="another rollout, with the router's choice in place of logits",
    )
