"""EAGLE's, EAGLE-3's and P-EAGLE's drafters as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl

COMPONENTS = [
    (
        "drafter",
        "eagle",
        "drafter:Eagle",
        "autoregressive on features: one decoder layer predicts the target's next feature",
    ),
    (
        "drafter",
        "eagle3",
        "eagle3:Eagle3",
        "autoregressive on states of its own: three of the target's features fused, a reduced LM head",
    ),
    (
        "drafter",
        "peagle",
        "parallel.drafter:PEagle",
        "parallel: EAGLE-3's network with mask rows, all levels in one forward pass",
    ),
    (
        "rollout",
        "cod",
        "parallel.rollout:COD",
        "P-EAGLE: rows of all levels at once, fewer the deeper they are",
    ),
    (
        "rollout",
        "training-time-test",
        "rollout:TrainingTimeTest",
        "EAGLE-3: the drafter's own states fed back, gradients included",
    ),
]


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafters `eagle`, `eagle3` and `peagle`, and the rollouts `training-time-test` and `cod`."""
    for kind, name, where, summary in COMPONENTS:
        register(kind, name, f"specframe_eagle.{where}", summary=summary)
