"""Network of a multi-token prediction head: two norms, a map, a decoder layer of the target's type, a norm."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specframe import CompositionError
from specframe.neural import DecoderLayer, FeatureNetwork, State
from specframe.plugin import PairSpec

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class MTPNetwork(FeatureNetwork):
    """The head of DeepSeek-V3 and Qwen3-Next, under the names of the package speculators.

    A pair is the embedding of token i + 1 and feature i, embedding first. Each passes its own norm, `input_proj` fuses
    them, and a complete decoder layer of the target's type follows. Its output passes `final_layernorm`; the target's
    LM head reads the result, which also replaces the feature one token further down. Features are those after the
    target's final norm.
    """

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.spec = PairSpec(imitates=None)
        self.layer = DecoderLayer(config)
        parts: Any = self.layer.layer
        if not hasattr(parts, "input_layernorm"):
            raise CompositionError(
                f"an mtp head has a layer with a norm before its attention, which {config.model_type!r} has not"
            )
        norms = (copy.deepcopy(parts.input_layernorm) for _ in range(3))
        self.token_layernorm, self.hidden_layernorm, self.final_layernorm = norms
        self.input_proj = nn.Linear(2 * size, size, bias=False)

    def inputs(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """Returns the layer's inputs for the next pairs, [B, M, 2H] -> [B, M, H]; the state is not used."""
        token, feature = pairs.chunk(2, -1)
        return self.input_proj(torch.cat([self.token_layernorm(token), self.hidden_layernorm(feature)], -1)), state

    def hidden(self, outputs: Tensor) -> Tensor:
        """Returns the LM head's input, the normed outputs: [.., H] -> [.., H]."""
        normed: Tensor = self.final_layernorm(outputs)
        return normed

    def features(self, outputs: Tensor) -> Tensor:
        """Returns the features that are fed back, which are the LM head's inputs."""
        return self.hidden(outputs)
