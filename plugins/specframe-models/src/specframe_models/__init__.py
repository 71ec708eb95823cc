"""Drafting models, as a specframe plugin; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl

COMPONENTS = (
    (
        "drafter",
        "nested",
        "nested.drafter:Nested",
        "S2D: a drafting model of several depths, as deep as its confidence asks for",
    ),
    (
        "drafter",
        "cascade",
        "nested.cascade:Cascade",
        "TriForce, CS-Drafting: a drafter whose drafts are drafted by a smaller one",
    ),
    ("rollout", "sorted", "nested.rollouts:Sorted", "S2D: a drafting model along texts, by each of several depths"),
    (
        "rollout",
        "layer-skip",
        "nested.rollouts:LayerSkip",
        "LayerSkip: a model along texts, by its early exits, with layers left out at random",
    ),
    (
        "drafter",
        "tli",
        "vocabularies.intersection:Intersection",
        "another vocabulary's drafter, over the tokens that both have",
    ),
    (
        "drafter",
        "slem",
        "vocabularies.matching:Matching",
        "another vocabulary's drafter, its text cut into the target's tokens",
    ),
    (
        "drafter",
        "slrs",
        "vocabularies.strings:Strings",
        "another vocabulary's drafter, the probabilities of its strings added up",
    ),
    (
        "drafter",
        "omnidraft",
        "vocabularies.ngrams:Ngrams",
        "another vocabulary's drafter, its n-grams as tokens of the target",
    ),
    (
        "loss",
        "hybrid",
        "vocabularies.hybrid:Hybrid",
        "of a drafter of another vocabulary: another loss, and the tokens that follow within n-grams",
    ),
    (
        "loss",
        "tvd-plus",
        "alignment.tvd:TVDPlus",
        "TVD++: total variation's policy gradient with a normalised advantage, in exact expectation",
    ),
    (
        "rollout",
        "replay",
        "alignment.replay:Replay",
        "Draft-OPD: along the drafter's own drafts, from where verification rejected them",
    ),
    (
        "head",
        "acceptance",
        "specdecpp.head:AcceptanceHead",
        "SpecDec++: another head, and how likely its token is accepted",
    ),
    ("loss", "acceptance", "specdecpp.loss:AcceptanceLoss", "SpecDec++: cross-entropy of the predicted acceptance"),
    (
        "rollout",
        "acceptance",
        "specdecpp.rollout:AcceptanceRollout",
        "another rollout, with the confidence of the head acceptance",
    ),
    ("tree", "threshold", "specdecpp.threshold:Threshold", "SpecDec++: a chain, stopped when a rejection is likely"),
)
"""Kinds, names, places in this package, and summaries."""


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the components of the table."""
    for kind, name, place, summary in COMPONENTS:
        register(kind, name, f"specframe_models.{place}", summary=summary)
