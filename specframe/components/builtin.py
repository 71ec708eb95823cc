"""The built-in components, registered through the hook every plugin uses."""

from __future__ import annotations

from specframe.kernel.hookspecs import Register, hookimpl

COMPONENTS = [
    ("target", "hf", "targets.hf:HFTarget", "any decoder-only causal language model that transformers loads"),
    ("target", "table", "targets.table:TableTarget", "an exact Markov model on a small vocabulary, for certificates"),
    ("drafter", "none", "drafters.none:NoDrafter", "drafts nothing: plain autoregressive decoding"),
    ("drafter", "model", "drafters.model:ModelDrafter", "a smaller causal language model with the same vocabulary"),
    ("drafter", "lookup", "drafters.lookup:Lookup", "copies what followed the last time these tokens appeared"),
    ("tree", "chain", "trees.chain:Chain", "one path"),
    ("tree", "fixed", "trees.fixed:Fixed", "a given shape"),
    ("tree", "dynamic", "trees.dynamic:Dynamic", "EAGLE-2: the most probable nodes under a budget"),
    ("verifier", "match", "verifiers.match:Match", "draws from the target's law and follows the child that is equal"),
    ("verifier", "recursive", "verifiers.recursive:Recursive", "recursive rejection with recorded laws, for any draw"),
    ("head", "full", "heads.full:Full", "the target's own LM head"),
    (
        "loss",
        "feature_regression",
        "losses.feature_regression:FeatureRegression",
        "SmoothL1 between predicted and true features",
    ),
    ("loss", "distillation", "losses.distillation:Distillation", "KL to the target's law, and its argmax as a label"),
    ("loss", "cross_entropy", "losses.cross_entropy:CrossEntropy", "cross-entropy against the target's law"),
    (
        "rollout",
        "teacher_forced",
        "rollouts.teacher_forced:TeacherForced",
        "one forward on the target's own features and tokens",
    ),
    (
        "rollout",
        "glancing",
        "rollouts.glancing:Glancing",
        "Falcon's coupled sequential glancing: a second forward on corrected predictions",
    ),
]


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the built-in components and the settings of the plain recipe sections."""
    for kind, name, target, summary in COMPONENTS:
        register(kind, name, f"specframe.components.{target}", summary=summary)
    register("section", "sampling", "specframe.engine.settings:SamplingSettings", summary="how tokens are chosen")
    register("section", "run", "specframe.engine.settings:RunSettings", summary="what is decoded, and how often")
    register("section", "train", "specframe.engine.training.settings:TrainSettings", summary="how to train")
