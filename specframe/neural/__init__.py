"""What trainable drafters share: the public building blocks for plugins with neural networks.

| name | what it is |
|---|---|
| `SlotCache` | a key-value cache with explicit write slots per row, for trees and ragged batches |
| `DecoderLayer` | one decoder layer of the target's own kind |
| `block_causal`, `block_end` | the relaxed causal mask of semi-autoregressive drafters |
| `checkpoint` | `save`, `load`, `read_config`, `locate`: strict and atomic safetensors checkpoints |
"""

from specframe.neural import checkpoint
from specframe.neural.cache import SlotCache
from specframe.neural.layer import DecoderLayer
from specframe.neural.masks import block_causal, block_end

__all__ = ["DecoderLayer", "SlotCache", "block_causal", "block_end", "checkpoint"]
