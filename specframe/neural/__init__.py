"""Public building blocks of trainable drafters, for plugins with neural networks.

| name | description |
|---|---|
| `NeuralDrafter` | the shell of a drafter: everything but its network and its options |
| `DraftNetwork` | the interface of a network |
| `FeatureNetwork` | a network of decoder layers that predicts features: a family defines its inputs from pairs |
| `LevelModules` | such a network as data, for native code that computes whole drafts |
| `TapFusion` | several of the target's features fused into one, each with its norm |
| `gather` | the features that a drafter reads, concatenated |
| `DecoderLayer` | decoder layers of the target's own kind, one by default |
| `rotation`, `turned` | the rotary embedding of positions, and its application to heads |
| `layer_config`, `LAYER_FIELDS` | the config of a drafter's layers of another kind, and the fields it copies |
| `make_config` | transformers' config of a model type, without a slow import for Llama's and Qwen2's |
| `FeatureSession` | the decoding state of a drafter over decoder layers: committed pairs, and the draft's nodes |
| `LastFeature` | the decoding state of a drafter that keeps only the last feature |
| `RowSession`, `PendingCommit`, `Pending` | the base of sessions that cache keys and values: rows join, commit, leave |
| `TextWindow` | the part of the committed pairs that drafts see, in constant memory |
| `DraftSession` | the interface of sessions |
| `State` | the state that a drafter carries from pair to pair, apart from its cache |
| `Blocks` | the expanded nodes of a draft, for custom sessions |
| `SlotCache` | a key-value cache with explicit write slots per row, for trees and ragged batches |
| `Depths` | the selection of a level's head for each node of a frontier |
| `too_deep` | the refusal of a tree that is deeper than a drafter with a head per level |
| `own_lm_heads` | the refusal of a head for a drafter with an LM head for every level |
| `seeded`, `output_weight` | a network's first weights |
| `block_causal`, `block_end` | the relaxed causal mask of semi-autoregressive drafters |
| `layer_windows` | the windows of the layers in a published drafter's config |
| `draft_positions`, `visible_drafts` | the positions of drafts after a text, and their attention mask |
| `anchored_positions`, `require_offset` | positions of a short text as in a long one, in training |
| `sample_rows`, `require_shares` | the mask rows that a training step keeps (COD), and its shares checked |
| `DivisibleTarget`, `divisible` | a target whose LM head can be read in part |
| `make_proposal`, `support_of` | a proposal of a head; the tokens that a head or drafter proposes from |
| `make_student`, `student_at` | predictions in training, with the teacher's positions that they imitate |
| `Quantization`, `round_layers`, `round_linear` | a network's linear layers in 4 or 8 bits, while it decodes on a CPU |
| `Cells` | a quantized LSTM |
| `tensor_on` | a tensor of the host's numbers on a device, without a sync |
| `ChunkKeys` | keys of chunks of texts, among which native code chooses by queries |
| `native_norm`, `native_fusion` | the norm before a head, and a fusion of taps, computed by native code |
| `Export`, `Exportable` | a drafter in the format of another program |
| `ambiguous_taps` | reasons why other programs may read other features than the drafter |
| `speculators_config` | the common part of the package speculators' configs |
| `gguf_file` | GGUF files as llama.cpp reads them: settings, tensors and a tokenizer under its names |
| `checkpoint` | strict and atomic safetensors checkpoints: `save`, `load`, `check` and what they need |
"""

from specframe._exports import exports

__getattr__, __dir__, __all__ = exports(__name__, __file__)
