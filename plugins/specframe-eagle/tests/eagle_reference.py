"""EAGLE's forward, FSPAD's and Dovetail's, number by number for layers of Llama's build: slow, and obviously right."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import silu

from specframe.testing import GivenSession, literal_layer
from specframe_eagle.drafter import Eagle


def prediction(drafter: Eagle, features: Tensor, tokens: Tensor) -> Tensor:
    """The prediction after the last of the pairs features [n, D], tokens [n]: [D], or FSPAD's two halves [2D]."""
    first, *upper = [dict(layer.named_parameters()) for layer in drafter.network.layer.layers]
    config = drafter.target.config
    inputs = [fuse(drafter, token, feature) for token, feature in zip(tokens, features, strict=True)]
    *before, last = [first, *upper]
    for number, layer in enumerate(before):  # every pair has an output of a layer, which the next one reads
        inputs = [
            literal_layer(layer, config, x, place, inputs[: place + 1], norm_input=number > 0)
            for place, x in enumerate(inputs)
        ]
    down = last["mlp.down_proj.weight"]
    parts = []
    for half in down.split(len(inputs[0])):  # one half is the whole without partial alignment
        halved = {**last, "mlp.down_proj.weight": half}
        parts.append(literal_layer(halved, config, inputs[-1], len(inputs) - 1, inputs, norm_input=len(before) > 0))
    return torch.cat(parts)


def fuse(drafter: Eagle, token: Tensor, feature: Tensor) -> Tensor:
    """The layer's input for a pair, [D]."""
    weights = dict(drafter.module.fc.named_parameters())
    embedding = drafter.target.embed(token)
    pair = torch.cat([embedding, feature])
    eps = drafter.target.config.rms_norm_eps
    if "gate.weight" in weights:
        normed = weights["norm.weight"] * embedding / (embedding.square().mean() + eps).sqrt()
        h1, h2 = weights["feature.weight"] @ feature, silu(weights["token.weight"] @ normed)
        z = torch.sigmoid(weights["gate.weight"] @ torch.cat([h1, h2]))
        return z * h1 + (1 - z) * h2
    if "mlp.gate_proj.weight" not in weights:
        return weights["weight"] @ pair + weights.get("bias", 0)
    x = weights["fc.weight"] @ pair + weights.get("fc.bias", 0)
    normed = weights["post_attention_layernorm.weight"] * x / (x.square().mean() + eps).sqrt()
    gate, up, down = (weights[f"mlp.{part}_proj.weight"] for part in ("gate", "up", "down"))
    return x + down @ (silu(gate @ embedding) * (up @ normed))


class Chains:
    """The predictions below paths of drafted tokens, after one row's pairs features [n, D], tokens [n].

    Every feature is fed back as if true. A path goes on where the shorter one that it begins with ended.
    """

    def __init__(self, drafter: Eagle, features: Tensor, tokens: Tensor) -> None:
        self._drafter = drafter
        self._found = {(): (features, tokens, prediction(drafter, features, tokens))}

    def below(self, *path: int) -> tuple[Tensor, Tensor, Tensor]:
        """The pairs along a path, and the prediction below it, [D] or [2D]."""
        if path not in self._found:
            features, tokens, predicted = self.below(*path[:-1])
            features = torch.cat([features, predicted[None, -features.shape[1] :]])
            tokens = torch.cat([tokens, torch.tensor(path[-1:])])
            self._found[path] = features, tokens, prediction(self._drafter, features, tokens)
        return self._found[path]


def literal(drafter: Eagle) -> Callable[[GivenSession, int, Tensor], Tensor]:
    """A function that gives the logits [1, V] below a drafted path, tokens [d], of a row of a session."""
    known: dict[tuple[GivenSession, int, int], Chains] = {}

    @torch.no_grad()
    def wanted(session: GivenSession, row: int, path: Tensor) -> Tensor:
        features, tokens = session.features[row], session.tokens[row]
        place = session, tokens.data_ptr(), len(tokens)  # a row may hold another text later on
        if place not in known:
            known[place] = Chains(drafter, features, tokens)
        predicted = known[place].below(*path.tolist())[-1]
        return drafter.logits(predicted[: drafter.target.config.hidden_size])[None]

    return wanted
