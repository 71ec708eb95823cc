"""The conformance kit: what a component must do, checked, for plugins as for the built-in ones.

| name | what it checks, or is |
|---|---|
| `check_drafter` | drafts, commit and rollback, batches, greedy identity, the enumerated law of the output |
| `check_tree` | well-formed trees, the K-levels rule, recorded laws |
| `check_verifier` | verdicts, batches and padding, losslessness by enumeration |
| `check_loss` | gradients, masks, batches |
| `check_head` | logits over the vocabulary, gradients, what is shared |
| `check_target` | logits, commits and features, against plain forwards over the text |
| `check_plugin` | everything that an installed package registers |
| `check_proposals` | a drafter's proposals through the life of a session, against a literal forward |
| `check_decoding` | a drafter over a tree policy, composed by recipe: greedy output |
| `check_depth` | a drafter of so many levels, by recipe: deeper trees are refused with a sentence |
| `check_refusals` | a neural drafter: what it cannot do is refused with a sentence |
| `TREES` | sections of tree policies of four levels, for `check_decoding` |
| `check_training` | a drafter trained by recipe: losses fall, and the simulated tau is decoding's |
| `audit` | a drafter's recorded laws, slot by slot |
| `Emission`, `Comparison` | the enumerated law of a composition's output, against the target's |
| `enumerate_outcomes`, `Enumeration` | the enumerator itself: any program over a random source |
| `GivenTarget`, `GivenDrafter` | a target and a drafter whose laws a test writes down |
| `LazyUniform` | one uniform number behind several decisions |
| `GivenSession`, `GrowingTree` | commits and frontiers for a drafter, by hand |
| `tiny_target`, `random_teacher`, `greedy_texts` | a random target, what it teaches, and its greedy texts |
| `fit` | the losses of a few steps of training |
| `shake` | random weights, so that every part of a fresh module matters |
| `literal_layer` | a decoder layer, restated number by number |

`specframe.testing.strategies` has Hypothesis strategies for laws, trees and samplings; it needs
`pip install specframe[testing]`.
"""

from specframe.certify.compositions.audit import Audit
from specframe.certify.compositions.emission import Comparison, Emission
from specframe.certify.compositions.enumeration import Enumeration, enumerate_outcomes
from specframe.testing.audits import audit
from specframe.testing.cycles import compare_cycle
from specframe.testing.drafters import check_drafter
from specframe.testing.heads import check_head
from specframe.testing.losses import check_loss
from specframe.testing.plugins import check_plugin
from specframe.testing.policies import check_tree
from specframe.testing.proposals import check_proposals
from specframe.testing.recipes import TREES, check_decoding, check_training
from specframe.testing.references.layer import literal_layer
from specframe.testing.refusals import check_depth, check_refusals
from specframe.testing.sessions import GivenSession, GrowingTree
from specframe.testing.tables import GivenDrafter, GivenTarget, LazyUniform
from specframe.testing.targets import admitted, check_target
from specframe.testing.tiny import greedy_texts, random_teacher, shake, tiny_target
from specframe.testing.training import fit
from specframe.testing.verifiers import check_verifier

__all__ = [
    "TREES",
    "Audit",
    "Comparison",
    "Emission",
    "Enumeration",
    "GivenDrafter",
    "GivenSession",
    "GivenTarget",
    "GrowingTree",
    "LazyUniform",
    "admitted",
    "audit",
    "check_decoding",
    "check_depth",
    "check_drafter",
    "check_head",
    "check_loss",
    "check_plugin",
    "check_proposals",
    "check_refusals",
    "check_target",
    "check_training",
    "check_tree",
    "check_verifier",
    "compare_cycle",
    "enumerate_outcomes",
    "fit",
    "greedy_texts",
    "literal_layer",
    "random_teacher",
    "shake",
    "tiny_target",
]
