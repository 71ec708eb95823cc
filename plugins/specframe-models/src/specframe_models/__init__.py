"""Drafting models; importing this package imports no torch."""

from __future__ import annotations

from specframe.plugin import Register, hookimpl


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the drafters that have models of their own, and the rollouts, losses and heads that train them."""
    register(
        "drafter",
        "nested",
        "specframe_models.nested.drafter:Nested",
        summary="S2D: a drafting model of several depths, as deep as its confidence asks for",
    )
    register(
        "drafter",
        "cascade",
        "specframe_models.nested.cascade:Cascade",
        summary="TriForce, CS-Drafting: a drafter whose drafts are drafted by a smaller one",
    )
    register(
        "rollout",
        "sorted",
        "specframe_models.nested.rollouts:Sorted",
        summary="S2D: a drafting model along texts, by each of several depths",
    )
    register(
        "rollout",
        "layer-skip",
        "specframe_models.nested.rollouts:LayerSkip",
        summary="LayerSkip: a model along texts, by its early exits, with layers left out at random",
    )
    register(
        "drafter",
        "tli",
        "specframe_models.vocabularies.intersection:Intersection",
        summary="another vocabulary's drafter, over the tokens that both have",
    )
    register(
        "drafter",
        "slem",
        "specframe_models.vocabularies.matching:Matching",
        summary="another vocabulary's drafter, its text cut into the target's tokens",
    )
    register(
        "drafter",
        "slrs",
        "specframe_models.vocabularies.strings:Strings",
        summary="another vocabulary's drafter, the probabilities of its strings added up",
    )
    register(
        "drafter",
        "omnidraft",
        "specframe_models.vocabularies.ngrams:Ngrams",
        summary="another vocabulary's drafter, its n-grams as tokens of the target",
    )
    register(
        "loss",
        "hybrid",
        "specframe_models.vocabularies.hybrid:Hybrid",
        summary="of a drafter of another vocabulary: another loss, and the tokens that follow within n-grams",
    )
    register(
        "loss",
        "tvd-plus",
        "specframe_models.alignment.tvd:TVDPlus",
        summary="TVD++: total variation's policy gradient with a normalised advantage, in exact expectation",
    )
    register(
        "rollout",
        "replay",
        "specframe_models.alignment.replay:Replay",
        summary="Draft-OPD: along the drafter's own drafts, from where verification rejected them",
    )
    register(
        "head",
        "acceptance",
        "specframe_models.specdecpp.head:AcceptanceHead",
        summary="SpecDec++: another head, and how likely its token is accepted",
    )
    register(
        "loss",
        "acceptance",
        "specframe_models.specdecpp.loss:AcceptanceLoss",
        summary="SpecDec++: cross-entropy of the predicted acceptance",
    )
    register(
        "rollout",
        "acceptance",
        "specframe_models.specdecpp.rollout:AcceptanceRollout",
        summary="another rollout, with the confidence of the head acceptance",
    )
    register(
        "tree",
        "threshold",
        "specframe_models.specdecpp.threshold:Threshold",
        summary="SpecDec++: a chain, stopped when a rejection is likely",
    )
