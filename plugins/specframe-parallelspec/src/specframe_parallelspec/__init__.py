"""ParallelSpec's drafter as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafter `parallelspec`."""
    register(
        "drafter",
        "parallelspec",
        "specframe_parallelspec.drafter:ParallelSpec",
        summary="parallel: one decoder layer and [MASK] tokens predict all levels in one forward pass",
    )
