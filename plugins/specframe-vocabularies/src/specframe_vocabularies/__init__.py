"""Drafters of another vocabulary as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe.plugin import hookimpl

if TYPE_CHECKING:
    from specframe.plugin import Register

DRAFTERS = (
    ("tli", "intersection:Intersection", "another vocabulary's drafter, over the tokens that both have"),
    ("slem", "matching:Matching", "another vocabulary's drafter, its text cut into the target's tokens"),
    ("slrs", "strings:Strings", "another vocabulary's drafter, the probabilities of its strings added up"),
    ("omnidraft", "ngrams:Ngrams", "another vocabulary's drafter, its n-grams as tokens of the target"),
)


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the wrappers and their loss."""
    for name, place, summary in DRAFTERS:
        register("drafter", name, f"specframe_vocabularies.{place}", summary=summary)
    summary = "of a drafter of another vocabulary: another loss, and the tokens that follow within n-grams"
    register("loss", "hybrid", "specframe_vocabularies.hybrid:Hybrid", summary=summary)
