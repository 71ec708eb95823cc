"""Some of the layers over tokens that were processed before."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.targets.passes.passes import Passes
from specframe.components.targets.passes.state import State
from specframe.kernel.layers import LayerChoice
from specframe.kernel.types import TokenTree


def replay(passes: Passes, chosen: LayerChoice, tokens: Tensor, state: State, context: int) -> Tensor:
    """The feature `last` [B, W, D] of tokens [B, W] after the chosen layers, `state` being that before the first.

    Their keys and values stand behind those of all rows, where the next tree is written. The first of them sees what
    the whole model made of the tokens before it, each later one in addition what these layers made of those between.
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
