"""The built-in components, registered through the hook every plugin uses."""

from __future__ import annotations

from specframe.kernel.plugins.hookspecs import Register, hookimpl

COMPONENTS = [
    ("target", "hf", "targets.hf:HFTarget", "any decoder-only causal language model that transformers loads"),
    ("target", "table", "targets.table:TableTarget", "an exact Markov model on a small vocabulary, for certificates"),
    ("drafter", "none", "drafters.none:NoDrafter", "drafts nothing: plain autoregressive decoding"),
    (
        "drafter",
        "model",
        "drafters.model:ModelDrafter",
        "a smaller causal language model of the target's vocabulary, which can be trained",
    ),
    ("drafter", "self", "drafters.own_layers:OwnLayers", "the target itself, some of its layers left out"),
    ("drafter", "lookup", "drafters.lookup:Lookup", "copies what followed the last time these tokens appeared"),
    ("drafter", "suffix", "drafters.suffix:Suffix", "copies from the text so far, longer after longer matches"),
    ("drafter", "recycling", "drafters.recycling:Recycling", "the target's own second choices, proposed again"),
    (
        "drafter",
        "suffix-recycling",
        "drafters.suffix_recycling:SuffixRecycling",
        "a copy and recycled choices in one tree, for any model",
    ),
    ("drafter", "lookahead", "drafters.lookahead:Lookahead", "n-grams from Jacobi iterations in the same forward pass"),
    ("drafter", "logitspec", "drafters.logitspec:LogitSpec", "the last logits' runners-up, and copies behind them"),
    ("drafter", "retrieval", "drafters.retrieval:Retrieval", "what followed the last tokens in a store of texts"),
    ("drafter", "fused", "drafters.fused:Fused", "two drafters in one tree"),
    ("tree", "chain", "trees.policies.chain:Chain", "one path"),
    (
        "tree",
        "adaptive",
        "trees.policies.adaptive:Adaptive",
        "as deep as pays, by recent acceptance and costs",
    ),
    (
        "tree",
        "goodput",
        "trees.policies.goodput:Goodput",
        "SmartSpec: as deep as pays for all rows together, by acceptance and measured costs",
    ),
    ("tree", "fixed", "trees.policies.fixed:Fixed", "a given shape"),
    ("tree", "dynamic", "trees.policies.dynamic:Dynamic", "EAGLE-2: the most probable nodes under a budget"),
    ("tree", "beam", "trees.policies.beam:Beam", "RSD-S: a stochastic beam, siblings without replacement"),
    ("tree", "dyspec", "trees.policies.dyspec:DySpec", "DySpec: sampled, grown where tokens are most likely reached"),
    ("tree", "greedy", "trees.policies.greedy:Greedy", "the most probable tokens and one draw; contains SpecHub"),
    ("tree", "sequoia", "trees.policies.sequoia:Sequoia", "Sequoia: the best shape for measured acceptance"),
    (
        "tree",
        "threshold",
        "trees.policies.threshold:Threshold",
        "SpecDec++: a chain, stopped when a rejection is likely",
    ),
    (
        "verifier",
        "match",
        "verifiers.match:Match",
        "draws from the target's distribution and follows the child that is equal",
    ),
    (
        "verifier",
        "recursive",
        "verifiers.recursive:Recursive",
        "recursive rejection with recorded distributions, for any draw",
    ),
    ("verifier", "block", "verifiers.block:Block", "block verification: a sampled chain judged as a whole"),
    ("verifier", "traversal", "verifiers.traversal:Traversal", "bottom-up: emits most from a sampled tree"),
    ("verifier", "kseq", "verifiers.kseq:KSeq", "SpecTr's K-SEQ: independent siblings against one common test"),
    ("verifier", "transport", "verifiers.transport:Transport", "siblings by twos, accepted almost as often as can be"),
    ("head", "full", "heads.full:Full", "the target's own LM head"),
    ("head", "trimmed", "heads.trimmed:Trimmed", "VocabTrim: the frequent tokens of the target's LM head"),
    (
        "head",
        "acceptance",
        "heads.acceptance:AcceptanceHead",
        "SpecDec++: another head, and how likely its token is accepted",
    ),
    ("loss", "acceptance", "losses.acceptance:AcceptanceLoss", "SpecDec++: cross-entropy of the predicted acceptance"),
    (
        "loss",
        "feature_regression",
        "losses.feature_regression:FeatureRegression",
        "SmoothL1 between predicted and true features",
    ),
    (
        "loss",
        "distillation",
        "losses.distillation:Distillation",
        "KL to the target's distribution, and its argmax as a label",
    ),
    ("loss", "cross_entropy", "losses.cross_entropy:CrossEntropy", "cross-entropy against the target's distribution"),
    (
        "loss",
        "top_k_distillation",
        "losses.top_k_distillation:TopKDistillation",
        "HASS: cross-entropy over the target's most probable tokens",
    ),
    ("loss", "tv", "losses.divergences:TotalVariation", "total variation: the share that sampling rejects"),
    ("loss", "nla", "losses.divergences:NegativeLogAcceptance", "negative logarithm of the share that is accepted"),
    ("loss", "lk_hybrid", "losses.divergences:LKHybrid", "LK losses: KL at first, total variation later"),
    ("loss", "reverse_kl", "losses.divergences:ReverseKL", "KL of the target's distribution from the drafter's"),
    ("loss", "jsd", "losses.divergences:JensenShannon", "Jensen-Shannon divergence"),
    ("loss", "d_pace", "losses.d_pace:DPace", "another loss, a level weighed by how much of a draft depends on it"),
    (
        "rollout",
        "acceptance",
        "rollouts.acceptance:AcceptanceRollout",
        "another rollout, with the confidence of the head acceptance",
    ),
    (
        "rollout",
        "teacher_forced",
        "rollouts.teacher_forced:TeacherForced",
        "one forward pass on the target's own features and tokens",
    ),
    ("rollout", "text", "rollouts.text:AlongText", "a drafting model along the texts as they are"),
    (
        "rollout",
        "on_policy",
        "rollouts.on_policy:OnPolicy",
        "DistillSpec: a drafting model along texts that it writes itself",
    ),
    (
        "rollout",
        "all_levels",
        "rollouts.all_levels:AllLevels",
        "every level of a draft from the last true feature, the text's own path given",
    ),
    (
        "rollout",
        "glancing",
        "rollouts.glancing:Glancing",
        "Falcon's coupled sequential glancing: a second forward pass on corrected predictions",
    ),
    (
        "rollout",
        "groups",
        "rollouts.groups:Groups",
        "ParallelSpec: every position begins a group that predicts several levels at once",
    ),
    (
        "rollout",
        "multi_step",
        "rollouts.multi_step:MultiStep",
        "HASS: trained on the drafter's own features, as many levels deep as there are steps",
    ),
]

STORES = [
    ("corpus", "corpus:Corpus", "documents and finished answers, searched by suffix arrays"),
]

CONTESTANTS = [
    ("plain", "contestants:Plain", "this package's own decoding, one token a cycle, without a drafter"),
    ("generate", "generation:Generate", "transformers' generate"),
    ("prompt-lookup", "generation:PromptLookup", "transformers' generate that copies n-grams of the prompt"),
    ("assisted", "generation:Assisted", "transformers' generate with an assistant model"),
]


@hookimpl
def specframe_register(register: Register) -> None:
    """Registers the built-in components and the settings of the plain recipe sections."""
    for kind, name, target, summary in COMPONENTS:
        register(kind, name, f"specframe.components.{target}", summary=summary)
    for name, target, summary in STORES:
        register("store", name, f"specframe.stores.{target}", summary=summary)
    for name, target, summary in CONTESTANTS:
        register("contestant", name, f"specframe.bench.contest.{target}", summary=summary)
    register("section", "sampling", "specframe.decoding.settings:SamplingSettings", summary="how tokens are chosen")
    register("section", "run", "specframe.decoding.settings:RunSettings", summary="what is decoded, and how often")
    register("section", "train", "specframe.training.settings:TrainSettings", summary="how to train")
