"""A drafter in the manner of EAGLE-3, on the public interface alone: three taps, an LM head over some of the tokens.

It reads three of the target's hidden states, each through a norm of its own, and feeds its own hidden state back.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specframe import InputError
from specframe.neural import DecoderLayer, FeatureNetwork, NeuralDrafter, TapFusion
from specframe.plugin import NeuralTarget, PairSpec, Predicted


class Network(FeatureNetwork):
    """One decoder layer over (token, fused features); its output recurs, and normed it goes to the LM head."""

    def __init__(self, config, tokens: int) -> None:
        super().__init__()
        size, layers = config.hidden_size, config.num_hidden_layers
        self.spec = PairSpec(taps=("layer.0", f"layer.{layers // 2}", "last"), imitates=None)
        self.fusion = TapFusion(len(self.spec.taps), size)
        self.token_norm = nn.RMSNorm(size, eps=1e-6)
        self.feature_norm = nn.RMSNorm(size, eps=1e-6)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layer = DecoderLayer(config)
        self.norm = nn.RMSNorm(size, eps=1e-6)
        self.lm_head = nn.Linear(size, tokens, bias=False)
        self.register_buffer("support", torch.arange(tokens))

    def fuse(self, features: Tensor) -> Tensor:
        return self.fusion(features)

    def inputs(self, pairs: Tensor, state, counts=None):
        token, feature = pairs.chunk(2, -1)
        return self.fc(torch.cat([self.token_norm(token), self.feature_norm(feature)], -1)), state

    def predicted(self, outputs: Tensor) -> Predicted:
        return Predicted(self.norm(outputs), outputs, read=self.lm_head)


class ThreeTaps(NeuralDrafter[Network]):
    """Three taps, a norm of each, and an LM head of its own.

    Args:
        tokens: how many of the target's tokens it proposes from, those of the smallest ids.
        weights: a trained drafter's folder; none: untrained.
    """

    name = "three_taps"

    def __init__(self, *, tokens: int = 1024, weights: str | None = None) -> None:
        if tokens < 1:
            raise InputError(f"three_taps: tokens must be at least 1, got {tokens}")
        super().__init__(weights=weights)
        self.tokens = tokens

    def build(self, target: NeuralTarget) -> Network:
        return Network(target.config, min(self.tokens, target.vocab_size))

    def identity(self, config):
        return {"tokens": min(self.tokens, config.vocab_size)}
