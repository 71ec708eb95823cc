"""Training data from the target's own answers; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the command `distill-data`, and `train --auto`."""
    register(
        "command",
        "distill-data",
        "specframe_distill.command:distill_data",
        summary="let the recipe's target answer prompts, as data to train drafters on; an interrupted run resumes",
    )
    register(
        "extension",
        "auto",
        "specframe_distill.auto.steps:auto",
        summary="`train --auto`: answers, draft vocabulary, drafter and bench in one command",
    )
