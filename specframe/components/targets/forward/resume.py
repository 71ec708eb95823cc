"""Resumed forward passes: verification above the drafting layers, and replays of committed tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.targets.forward.passes import Found, Passes
from specframe.components.targets.forward.state import State
from specframe.kernel.layers import LayerChoice
from specframe.kernel.types import TokenTree


def finish(passes: Passes, tree: TokenTree, state: State, positions: Tensor) -> Found:
    """Scores the tree from the outputs of the first layers for the nodes of a draft, where they drafted.

    The first layers run here over the remaining nodes, the other layers over all. The state is aimed at the nodes'
    slots. There may be features of more taps than were requested.
    """
    drafted, state.drafted = state.drafted, None
    if drafted is None:
        return passes.score(tree, state, positions)
    chosen = drafted.chosen
    places = drafted.places(tree)  # [B, N]
    found = places >= 0
    standing = torch.arange(places.shape[1], device=places.device)
    if bool((found & (places != standing)).any()):
        state.cache.compact(state.base + torch.where(found, places, standing), state.base)
    features = {
        tap: values.gather(1, places.clamp(min=0)[..., None].expand(-1, -1, values.shape[-1]))
        for tap, values in drafted.features.items()
    }  # [B, N, D] each
    missing = (~found).any(0).nonzero()[:, 0]  # in some row; those of the others come out as they were
    if len(missing):
        first = LayerChoice.first(chosen.whole, chosen.layers)
        more = passes.below(tree, missing.expand(len(places), -1), state, positions, first)
        for tap, values in features.items():
            values[:, missing] = more[tap]
        state.aim(places.shape[1])
    logits, others = passes.above(tree, state, positions, features[f"layer.{chosen.whole - 1}"], chosen.rest)
    return logits, {**features, **others}


def replay(passes: Passes, chosen: LayerChoice, tokens: Tensor, state: State, context: int) -> Tensor:
    """The feature `last` [B, W, D] of tokens [B, W] after the chosen layers, `state` being that before the first.

    Their keys and values stand behind those of all rows, where the next tree is written. The first of them sees the
    whole model's entries of the tokens before it, each later one also these layers' entries of the tokens between.
    """
    order = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    chain = TokenTree(
        tokens=tokens,
        parent=order - 1,
        valid=torch.ones_like(tokens, dtype=torch.bool),
        draw=torch.zeros_like(tokens),
        levels=tokens.shape[1] - 1,
    )
    positions = state.positions(chain, context).clamp(min=0)  # of a row that has fewer tokens, they mean nothing
    return passes.below(chain, order, state, positions, chosen)["last"]
