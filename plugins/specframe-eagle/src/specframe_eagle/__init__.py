"""EAGLE's, EAGLE-3's and P-EAGLE's drafters as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafters `eagle`, `eagle3` and `peagle`, and the rollouts `training-time-test` and `cod`."""
    register(
        "drafter",
        "eagle",
        "specframe_eagle.drafter:Eagle",
        summary="autoregressive on features: one decoder layer predicts the target's next feature",
    )
    register(
        "drafter",
        "eagle3",
        "specframe_eagle.eagle3:Eagle3",
        summary="autoregressive on states of its own: three of the target's features fused, a reduced LM head",
    )
    register(
        "drafter",
        "peagle",
        "specframe_eagle.parallel.drafter:PEagle",
        summary="parallel: EAGLE-3's network with mask rows, all levels in one forward pass",
    )
    register(
        "rollout",
        "cod",
        "specframe_eagle.parallel.rollout:COD",
        summary="P-EAGLE: rows of all levels at once, fewer the deeper they are",
    )
    register(
        "rollout",
        "training-time-test",
        "specframe_eagle.rollout:TrainingTimeTest",
        summary="EAGLE-3: the drafter's own states fed back, gradients included",
    )
