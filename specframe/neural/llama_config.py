"""transformers' configs of Llama and Qwen2, without importing transformers' own classes for them.

That import takes three quarters of a second and 53 MB, to check an activation's name. These classes have the same base,
fields and defaults; `complete_config` gives a config transformers' class when transformers builds a model from it.
"""

from dataclasses import is_dataclass
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

if not is_dataclass(PreTrainedConfig):
    raise ImportError("configs of this release of transformers have another form")


@strict
class LlamaConfig(PreTrainedConfig):
    """transformers' config of a Llama model."""

    model_type = "llama"
    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    pretraining_tp: int | None = 1
    tie_word_embeddings: bool = False
    rope_parameters: dict[str, Any] | None = None
    attention_bias: bool = False
    attention_dropout: int | float | None = 0.0
    mlp_bias: bool = False
    head_dim: int | None = None

    def __post_init__(self, **others: Any) -> None:
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        super().__post_init__(**others)

    def validate_architecture(self) -> None:
        """Raises ValueError for sizes that transformers' class refuses."""
        if self.hidden_size % self.num_attention_heads or not 0.0 <= self.initializer_range <= 1.0:
            raise ValueError("hidden_size is a multiple of num_attention_heads, and initializer_range from 0 to 1")


@strict
class Qwen2Config(PreTrainedConfig):
    """transformers' config of a Qwen2 model."""

    model_type = "qwen2"
    vocab_size: int = 151936
    hidden_size: int = 4096
    intermediate_size: int = 22016
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = 32
    hidden_act: str = "silu"
    max_position_embeddings: int = 32768
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    tie_word_embeddings: bool = False
    rope_parameters: dict[str, Any] | None = None
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None
    attention_dropout: float | int = 0.0
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **others: Any) -> None:
        self.sliding_window = self.sliding_window if self.use_sliding_window else None
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.layer_types is None:
            near = self.num_hidden_layers if self.sliding_window is None else self.max_window_layers
            kinds = ("full_attention", "sliding_attention")
            self.layer_types = [kinds[layer >= near] for layer in range(self.num_hidden_layers)]
        super().__post_init__(**others)


CONFIGS: dict[str, type[PreTrainedConfig]] = {"llama": LlamaConfig, "qwen2": Qwen2Config}
"""The classes of this module, by model type."""
