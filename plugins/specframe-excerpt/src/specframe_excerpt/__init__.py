"""Drafts from an excerpt of the prompt, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.kernel.discovery import Register


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafter `excerpt` and the verifier `rapid`."""
    register(
        "drafter",
        "excerpt",
        "specframe_excerpt.excerpt:Excerpt",
        summary="RAPID: a drafter that reads the pieces of a long prompt that fit its question, in place of all of it",
    )
    register(
        "verifier",
        "rapid",
        "specframe_excerpt.margin:Rapid",
        summary="lossy: the target's distribution moved towards what a drafter of excerpts knows better (RAPID)",
    )
