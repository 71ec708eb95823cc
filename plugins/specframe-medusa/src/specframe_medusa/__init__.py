"""Medusa and Hydra as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafters `medusa` and `hydra` and the verifier `typical`."""
    register(
        "drafter",
        "medusa",
        "specframe_medusa.medusa:Medusa",
        summary="parallel: a head per level on the target's last feature, all levels in one forward pass",
    )
    register(
        "drafter",
        "hydra",
        "specframe_medusa.hydra:Hydra",
        summary="a head per level that sees the drafted path; with a prefix layer and deeper heads, Hydra++",
    )
    register(
        "verifier",
        "typical",
        "specframe_medusa.typical:Typical",
        summary="lossy: accepts what the target finds plausible (Medusa's typical acceptance)",
    )
