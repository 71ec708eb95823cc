"""The conformance kit: what a component must do, checked, for plugins as for the built-in ones.

| name | what it checks |
|---|---|
| `check_drafter` | drafts, commit and rollback, batches, greedy identity, the enumerated law of the output |
| `check_tree` | well-formed trees, the K-levels rule, recorded laws |
| `check_verifier` | verdicts, batches and padding, losslessness by enumeration |
| `check_loss` | gradients, masks, batches |
| `check_plugin` | everything that an installed package registers |
| `audit` | a drafter's recorded laws, slot by slot |
| `Emission`, `Comparison` | the enumerated law of a composition's output, against the target's |
| `enumerate_outcomes`, `Enumeration` | the enumerator itself: any program over a random source |
| `GivenTarget`, `GivenDrafter` | a target and a drafter whose laws a test writes down |
| `LazyUniform` | one uniform number behind several decisions |

`specframe.testing.strategies` has Hypothesis strategies for laws, trees and samplings; it needs
`pip install specframe[testing]`.
"""

from specframe.engine.certificate.audit import Audit
from specframe.engine.certificate.emission import Comparison, Emission
from specframe.engine.certificate.enumeration import Enumeration, enumerate_outcomes
from specframe.testing.audits import audit
from specframe.testing.cycles import compare_cycle
from specframe.testing.drafters import check_drafter
from specframe.testing.losses import check_loss
from specframe.testing.plugins import check_plugin
from specframe.testing.policies import check_tree
from specframe.testing.tables import GivenDrafter, GivenTarget
from specframe.testing.uniform import LazyUniform
from specframe.testing.verifiers import check_verifier

__all__ = [
    "Audit",
    "Comparison",
    "Emission",
    "Enumeration",
    "GivenDrafter",
    "GivenTarget",
    "LazyUniform",
    "audit",
    "check_drafter",
    "check_loss",
    "check_plugin",
    "check_tree",
    "check_verifier",
    "compare_cycle",
    "enumerate_outcomes",
]
