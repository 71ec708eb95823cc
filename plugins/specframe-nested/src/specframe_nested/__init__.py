"""Models of several depths in one, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.recipes.discovery import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafters `nested` and `cascade` and the rollouts `sorted` and `layer-skip`."""
    register(
        "drafter",
        "nested",
        "specframe_nested.drafter:Nested",
        summary="S2D: a drafting model of several depths, as deep as its confidence asks for",
    )
    register(
        "drafter",
        "cascade",
        "specframe_nested.cascade:Cascade",
        summary="TriForce, CS-Drafting: a drafter whose drafts are drafted by a smaller one",
    )
    register(
        "rollout",
        "sorted",
        "specframe_nested.rollouts:Sorted",
        summary="S2D: a drafting model along texts, by each of several depths",
    )
    register(
        "rollout",
        "layer-skip",
        "specframe_nested.rollouts:LayerSkip",
        summary="LayerSkip: a model along texts, by its early exits, with layers left out at random",
    )
