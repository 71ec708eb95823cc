"""ParallelSpec's forward restated: number by number for a Llama-shaped layer, and in the layout of Figure 3."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.testing import literal_layer
from specframe_parallelspec.drafter import ParallelSpec


def group(drafter: ParallelSpec, features: Tensor, tokens: Tensor) -> Tensor:
    """Predictions of the group after the pairs features [n, D], tokens [n], one member after the other: [1 + K, D].

    Section 4.1: the sequence, then [MASK] 1 .. [MASK] k; the last of them predicts.
    """
    weights = dict(drafter.module.named_parameters())
    seen = list(entries(drafter, features, drafter.target.embed(tokens)))
    spoken = [layer(drafter, seen)]
    for mask in weights["masks"]:
        seen.append(entries(drafter, features[-1], mask))
        spoken.append(layer(drafter, seen))
    if not drafter.features:
        eps = drafter.target.config.rms_norm_eps
        spoken = [weights["norm.weight"] * x / (x.square().mean() + eps).sqrt() for x in spoken]
    return torch.stack(spoken)


def path(drafter: ParallelSpec, features: Tensor, tokens: Tensor, drafted: Tensor) -> Tensor:
    """The predictions below a path of drafted tokens, a multiple of 1 + K of them: [1 + K, D].

    The path's tokens become entries, each paired with the feature predicted for its parent; the [MASK]s are gone.
    """
    predicted = group(drafter, features, tokens)
    for start in range(0, len(drafted), drafter.levels):
        features = torch.cat([features, predicted])
        tokens = torch.cat([tokens, drafted[start : start + drafter.levels]])
        predicted = group(drafter, features, tokens)
    return predicted


def entries(drafter: ParallelSpec, features: Tensor, embedded: Tensor) -> Tensor:
    """The layer's inputs for pairs of a feature and the embedding of what follows it: [.., D], [.., D] -> [.., D]."""
    if not drafter.features:
        return embedded
    weights = dict(drafter.module.named_parameters())
    return torch.cat([embedded, features], -1) @ weights["fc.weight"].T + weights["fc.bias"]


def figure(drafter: ParallelSpec, features: Tensor, tokens: Tensor) -> Tensor:
    """All groups of texts [B, n] in one dense forward, as Figure 3 draws it: [B, n, 1 + K, D].

    Sequence: entry, its [MASK]s, next entry, its [MASK]s, ..; positions go on from each entry.
    """
    network, batch, n, k = drafter.module, len(tokens), tokens.shape[1], drafter.levels
    masks = network.masks.expand(batch, n, -1, -1)
    embedded = torch.cat([drafter.target.embed(tokens)[:, :, None], masks], 2)  # [B, n, k, D]
    sequence = entries(drafter, features[:, :, None].expand_as(embedded), embedded).flatten(1, 2)  # [B, n k, D]
    owner = torch.arange(n).repeat_interleave(k)
    member = torch.arange(k).repeat(n)
    allowed = torch.zeros(n * k, n * k, dtype=torch.bool)
    for query in range(n * k):
        for key in range(query + 1):
            allowed[query, key] = bool(member[key] == 0 or owner[key] == owner[query])
    out = network.layer(sequence, (owner + member).expand(batch, -1), allowed[None, None])
    return network.norm(out).unflatten(1, (n, k))


def layer(drafter: ParallelSpec, seen: list[Tensor]) -> Tensor:
    """The layer's output for the last of its inputs; without features it has an input norm."""
    weights = dict(drafter.module.layer.layer.named_parameters())
    config, last = drafter.target.config, len(seen) - 1
    return literal_layer(weights, config, seen[last], last, seen, norm_input=not drafter.features)
