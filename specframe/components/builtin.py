"""The built-in components, registered through the hook every plugin uses."""

from __future__ import annotations

from typing import TypeAlias

from specframe.recipes.discovery import Register, hookimpl

Parts: TypeAlias = tuple[tuple[str, str, str], ...]
"""Names, places in a folder, and summaries."""

TARGETS: Parts = (
    ("hf", "hf:HFTarget", "any decoder-only language model that transformers loads, with or without images"),
    ("table", "table:TableTarget", "an exact Markov model on a small vocabulary, for certificates"),
)

DRAFTERS: Parts = (
    ("none", "none:NoDrafter", "drafts nothing: plain autoregressive decoding"),
    ("model", "model:ModelDrafter", "a smaller causal language model of the target's vocabulary, which can be trained"),
    (
        "self",
        "own_layers:OwnLayers",
        "the target itself: some of its layers, on a part of the text, or in 4 bits",
    ),
    ("lookup", "lookup:Lookup", "copies what followed the last time these tokens appeared"),
    ("suffix", "suffix:Suffix", "copies from the text so far, longer after longer matches"),
    ("recycling", "recycling:Recycling", "the target's own second choices, proposed again"),
    ("suffix-recycling", "suffix_recycling:SuffixRecycling", "a copy and recycled choices in one tree, for any model"),
    ("fused", "fused:Fused", "two drafters in one tree"),
)

TREES: Parts = (
    ("chain", "fixed:Chain", "one path"),
    ("fixed", "fixed:Fixed", "a given shape"),
    ("dynamic", "dynamic:Dynamic", "EAGLE-2: the most probable nodes under a budget"),
)

VERIFIERS: Parts = (
    ("match", "match:Match", "draws from the target's distribution and follows the child that is equal"),
    ("recursive", "recursive:Recursive", "recursive rejection with recorded distributions, for any draw"),
    ("block", "block:Block", "block verification: a sampled chain judged as a whole"),
    ("traversal", "traversal:Traversal", "bottom-up: emits most from a sampled tree"),
    ("lenient", "lenient:Lenient", "lossy: recursive rejection that accepts more than the distribution allows"),
)

HEADS: Parts = (
    ("full", "heads:FullHead", "the target's own LM head"),
    ("trimmed", "heads:Trimmed", "VocabTrim: the frequent tokens of the target's LM head"),
)

LOSSES: Parts = (
    ("feature-regression", "feature_regression:FeatureRegression", "SmoothL1 between predicted and true features"),
    ("distillation", "distillation:Distillation", "KL to the target's distribution, and its argmax as a label"),
    ("cross-entropy", "cross_entropy:CrossEntropy", "cross-entropy against the target's distribution"),
    (
        "top-k-distillation",
        "distillation:TopKDistillation",
        "HASS: cross-entropy over the target's most probable tokens",
    ),
    ("tv", "divergences:TotalVariation", "total variation: the share that sampling rejects"),
    ("nla", "divergences:NegativeLogAcceptance", "negative logarithm of the share that is accepted"),
    ("lk-hybrid", "divergences:LKHybrid", "LK losses: KL at first, total variation later"),
    ("reverse-kl", "divergences:ReverseKL", "KL of the target's distribution from the drafter's"),
    ("jsd", "divergences:JensenShannon", "Jensen-Shannon divergence"),
)

ROLLOUTS: Parts = (
    ("masked-text", "text:MaskedText", "PARD: a language model fills in mask tokens after the text"),
    ("teacher-forced", "teacher_forced:TeacherForced", "one forward pass on the target's own features and tokens"),
    ("text", "text:AlongText", "a drafting model along the texts as they are"),
    ("on-policy", "text:OnPolicy", "DistillSpec: a drafting model along texts that it writes itself"),
    (
        "all-levels",
        "teacher_forced:AllLevels",
        "every level of a draft from the last true feature, the text's own path given",
    ),
    (
        "groups",
        "teacher_forced:Groups",
        "ParallelSpec: every position begins a group that predicts several levels at once",
    ),
    (
        "multi-step",
        "multi_step:MultiStep",
        "HASS: trained on the drafter's own features, as many levels deep as there are steps",
    ),
)

LEARNING: Parts = (("online", "online:Online", "another drafter, which keeps learning while it drafts"),)

CONTESTANTS: Parts = (
    ("plain", "own:Plain", "this package's own decoding, one token a cycle, without a drafter"),
    ("generate", "generation:Generate", "transformers' generate"),
    ("generate-compiled", "generation:GenerateCompiled", "transformers' generate over a static cache, compiled"),
    ("prompt-lookup", "generation:PromptLookup", "transformers' generate that copies n-grams of the prompt"),
    ("assisted", "generation:Assisted", "transformers' generate with an assistant model"),
)

COMPONENTS: tuple[tuple[str, str, Parts], ...] = (
    ("target", "components.targets", TARGETS),
    ("drafter", "components.drafters", DRAFTERS),
    ("drafter", "training", LEARNING),
    ("tree", "components.trees", TREES),
    ("verifier", "components.verifiers", VERIFIERS),
    ("head", "components", HEADS),
    ("loss", "components.losses", LOSSES),
    ("rollout", "components.rollouts", ROLLOUTS),
    ("contestant", "bench.contest", CONTESTANTS),
)
"""Registered components: kinds, the folders of this package that hold them, and the components."""


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the built-in components and the settings of the plain recipe sections."""
    for kind, folder, parts in COMPONENTS:
        for name, place, summary in parts:
            register(kind, name, f"specframe.{folder}.{place}", summary=summary)
    register("section", "sampling", "specframe.decoding.settings:SamplingSettings", summary="how tokens are chosen")
    register("section", "run", "specframe.decoding.settings:RunSettings", summary="what is decoded, and how often")
    register("section", "train", "specframe.training.settings:TrainSettings", summary="how to train")
