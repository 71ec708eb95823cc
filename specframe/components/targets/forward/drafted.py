"""Outputs of the first layers for the nodes of a draft, kept for its verification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.kernel.layers import LayerChoice
from specframe.kernel.types import TokenTree


@dataclass(frozen=True)
class Drafted:
    """The features that the first layers gave for nodes of a draft. Node i's keys and values stand i slots behind the
    root's."""

    chosen: LayerChoice
    tree: TokenTree
    features: Mapping[str, Tensor]  # tap -> [B, N, D]; anything at nodes that they did not run over
    known: Tensor  # [B, N] bool, the nodes that they did run over

    @classmethod
    def put(
        cls, before: Drafted | None, chosen: LayerChoice, tree: TokenTree, nodes: Tensor, features: Mapping[str, Tensor]
    ) -> Drafted:
        """Adds features [B, F, D] of nodes [B, F] to the known ones, for the tree as it is now."""
        batch, count = tree.tokens.shape
        rows = torch.arange(batch, device=nodes.device)[:, None]
        known = torch.zeros(batch, count, dtype=torch.bool, device=nodes.device)
        made = {}
        goes_on = before is not None and before.chosen == chosen and tree.levels > 0
        if before is not None and goes_on:
            known[:, : before.known.shape[1]] = before.known
        known[rows, nodes] = True
        for tap, values in features.items():
            if tap == "last":
                continue
            made[tap] = values.new_zeros(batch, count, values.shape[-1])
            if before is not None and goes_on:
                made[tap][:, : before.known.shape[1]] = before.features[tap]
            made[tap][rows, nodes] = values
        return cls(chosen, tree, made, known)

    def places(self, tree: TokenTree) -> Tensor:
        """The node here of the same path as each node of a tree, [B, N]; -1 where these layers did not run over it."""
        batch, count = tree.tokens.shape
        mine = self.tree
        places = torch.full((batch, count), -1, dtype=torch.int64, device=tree.tokens.device)
        places[:, 0] = torch.where(self.known[:, 0] & (mine.tokens[:, 0] == tree.tokens[:, 0]), 0, -1)
        for _ in range(tree.levels):
            above = places.gather(1, tree.parent.clamp(min=0))  # [B, N]
            same = mine.parent[:, None] == above[..., None]  # [B, N, M]
            same &= mine.tokens[:, None] == tree.tokens[..., None]
            same &= self.known[:, None] & ((above >= 0) & (tree.parent >= 0) & tree.valid)[..., None]
            found = torch.where(same.any(-1), same.int().argmax(-1), -1)
            places[:, 1:] = found[:, 1:]
        return places
