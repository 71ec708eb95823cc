"""The conformance kit: checks of the contracts of components, for plugins as for the built-in ones.

| name | checks, or description |
|---|---|
| `check_drafter` | drafts, commit and rollback, batches, greedy identity, the enumerated law of the output |
| `check_tree` | well-formed trees, the K-levels rule, recorded laws |
| `check_verifier` | verdicts, batches and padding, losslessness by enumeration |
| `check_loss` | gradients, masks, batches |
| `check_head` | logits over the vocabulary, gradients, sharing |
| `check_target` | logits, commits and features, against plain forwards over the text |
| `check_plugin` | everything that an installed package registers |
| `recipes` | a Hypothesis strategy: whole recipes of what is installed |
| `check_recipe` | a recipe: refused with a sentence, or lossless in every random outcome |
| `Coverage` | compositions of all components, and of every two that compose, in few recipes |
| `check_proposals` | a drafter's proposals through the life of a session, against a literal forward |
| `check_decoding` | a drafter over a tree policy, composed by recipe: greedy output |
| `check_depth` | a drafter of a given depth, by recipe: deeper trees are refused with a sentence |
| `check_refusals` | a neural drafter: bad settings are refused with a sentence |
| `TREES` | sections of tree policies of four levels, for `check_decoding` |
| `check_training` | a drafter trained by recipe: losses fall, and the simulated tau is decoding's |
| `audit` | a drafter's recorded laws, slot by slot |
| `Emission`, `Comparison` | the enumerated law of a composition's output, against the target's |
| `enumerate_outcomes` | the enumerator: any program over a random source |
| `GivenTarget`, `GivenDrafter` | a target and a drafter whose laws a test writes down |
| `LazyUniform` | one uniform number after several decisions |
| `GivenSession`, `GrowingTree` | commits and frontiers for a drafter, by hand |
| `tiny_target`, `random_teacher`, `greedy_texts` | a random target, its teachers, and its greedy texts |
| `fit` | the losses of a few steps of training |
| `shake` | random weights, so that every part of a fresh module matters |
| `literal_layer` | a decoder layer, restated number by number |

`specframe.testing.strategies` has Hypothesis strategies for laws, trees and samplings; it needs
`pip install specframe[testing]`.
"""

from specframe._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
