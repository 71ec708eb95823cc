"""What trainable drafters share: the public building blocks for plugins with neural networks.

| name | what it is |
|---|---|
| `SlotCache` | a key-value cache with explicit write slots per row, for trees and ragged batches |
| `DecoderLayer` | one decoder layer of the target's own kind |
| `FeatureSession` | the decoding state of a drafter with one decoder layer: committed pairs, and the draft's nodes |
| `State` | what such a drafter carries from pair to pair |
| `Blocks` | the nodes of a draft that were expanded, for sessions of one's own |
| `Binding` | a drafter's target, network and session, each from its time on |
| `neural_target`, `tree_policy`, `too_deep` | what a drafter needs, or its refusal |
| `seeded`, `output_weight` | a network's first weights |
| `block_causal`, `block_end` | the relaxed causal mask of semi-autoregressive drafters |
| `DivisibleTarget`, `divisible` | a target whose LM head can be read in part |
| `make_proposal`, `support_of` | a proposal of a head; the tokens that a head or drafter proposes from |
| `checkpoint` | strict and atomic safetensors checkpoints: `save`, `load`, `check` and what they need |
"""

from specframe.neural import checkpoint
from specframe.neural.binding import Binding, neural_target, too_deep, tree_policy
from specframe.neural.blocks import Blocks, State
from specframe.neural.cache import SlotCache
from specframe.neural.heads import DivisibleTarget, divisible, make_proposal, support_of
from specframe.neural.layer import DecoderLayer
from specframe.neural.masks import block_causal, block_end
from specframe.neural.session import FeatureSession
from specframe.neural.weights import output_weight, seeded

__all__ = [
    "Binding",
    "Blocks",
    "DecoderLayer",
    "DivisibleTarget",
    "FeatureSession",
    "SlotCache",
    "State",
    "block_causal",
    "block_end",
    "checkpoint",
    "divisible",
    "make_proposal",
    "neural_target",
    "output_weight",
    "seeded",
    "support_of",
    "too_deep",
    "tree_policy",
]
