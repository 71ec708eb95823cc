"""EAGLE's forward, restated number by number for layers of Llama's build: slow, and obviously right."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.testing import literal_layer
from specframe_eagle.drafter import Eagle


def next_feature(drafter: Eagle, features: Tensor, tokens: Tensor) -> Tensor:
    """The feature predicted after the last of the pairs features [n, D], tokens [n]: [D]."""
    weights = dict(drafter.module.named_parameters())
    layer = dict(drafter.module.layer.layer.named_parameters())
    pairs = torch.cat([drafter.binding.target.embed(tokens), features], -1)  # [n, 2D], embedding first
    bias = weights.get("fc.bias", 0)
    fused = [weights["fc.weight"] @ pair + bias for pair in pairs]
    config = drafter.binding.target.config
    return literal_layer(layer, config, fused[-1], len(fused) - 1, fused, norm_input=False)


def chain(drafter: Eagle, features: Tensor, tokens: Tensor, drafted: Tensor) -> Tensor:
    """The feature predicted below a path of drafted tokens, [D]: every feature is fed back as if true."""
    predicted = next_feature(drafter, features, tokens)
    for token in drafted:
        features = torch.cat([features, predicted[None]])
        tokens = torch.cat([tokens, token[None]])
        predicted = next_feature(drafter, features, tokens)
    return predicted
