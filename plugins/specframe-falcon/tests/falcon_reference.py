"""Falcon's forward, restated number by number for a Llama-shaped layer: slow, and obviously right."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.testing import literal_layer
from specframe_falcon.drafter import Falcon


def block(drafter: Falcon, features: Tensor, tokens: Tensor) -> Tensor:
    """The features predicted by the block that ends at the last pair, [k, D].

    Pairs are features [n, D] and tokens [n]. Where there are fewer than k pairs, the positions before
    the first hold zeros instead of an LSTM output: they attend, from position 0, but nothing attends to them.
    """
    weights = dict(drafter.module.named_parameters())
    pairs = torch.cat([drafter.target.embed(tokens), features], -1)  # [n, 2D]
    seen = lstm(weights, pairs)
    count, k = len(seen), drafter.block
    asking = [(max(i, 0), seen[i] if i >= 0 else torch.zeros_like(seen[0])) for i in range(count - k, count)]
    config = drafter.target.config
    *before, last = [dict(layer.named_parameters()) for layer in drafter.module.layer.layers]
    for layer in before:  # these see no later pairs
        asking = [(i, literal_layer(layer, config, x, i, seen[: i + 1])) for i, x in asking]
        seen = [literal_layer(layer, config, x, i, seen[: i + 1]) for i, x in enumerate(seen)]
    return torch.stack([literal_layer(last, config, x, i, seen) for i, x in asking])


def path(drafter: Falcon, features: Tensor, tokens: Tensor, drafted: Tensor) -> Tensor:
    """The features predicted below a path of drafted tokens (a multiple of k of them), [k, D].

    Every forward is one over the whole sequence: `unroll`, which a test of its own holds to `block`,
    or `block` itself where there are fewer pairs than k.
    """
    for start in range(0, len(drafted) + 1, drafter.block):
        if len(tokens) < drafter.block:
            predicted = block(drafter, features, tokens)
        else:
            predicted = drafter.unroll(features[None], tokens[None]).features[0, -drafter.block :, 0]
        features = torch.cat([features, predicted])
        tokens = torch.cat([tokens, drafted[start : start + drafter.block]])
    return predicted


def lstm(weights: dict[str, Tensor], inputs: Tensor) -> list[Tensor]:
    """The second LSTM layer's output after every input."""
    outputs = list(inputs)
    for depth in range(2):
        names = [f"lstm.{name}_l{depth}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        into, back, bias_into, bias_back = (weights[name] for name in names)
        hidden = cell = into.new_zeros(back.shape[1])
        for index, x in enumerate(outputs):
            gates = into @ x + bias_into + back @ hidden + bias_back
            enter, forget, content, leave = gates.chunk(4)
            cell = forget.sigmoid() * cell + enter.sigmoid() * content.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            outputs[index] = hidden
    return outputs
