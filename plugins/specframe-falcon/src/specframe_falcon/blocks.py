"""What the expanded nodes of a draft leave behind, so that any node below can go on from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe_falcon.network import State


@dataclass(frozen=True)
class Blocks:
    """R expanded nodes of a draft: the k features predicted below each, and how to go on from there."""

    nodes: Tensor  # [B, R] int64
    features: Tensor  # [B, R, k, D], of the k levels below the node
    state: State  # [2, B, R, D] each: the LSTM's, after the node's own pair
    position: Tensor  # [B, R] int64, of the first pair below the node
    sees: Tensor  # [B, R, S] bool, which of the S expansions below the root lie on the node's path

    @classmethod
    def of_root(cls, features: Tensor, state: State, counts: Tensor) -> Blocks:
        """The root alone, given its prediction [B, k, D], the LSTM's state [2, B, D] and pairs so far [B]."""
        hidden, cell = state
        return cls(
            nodes=torch.zeros_like(counts)[:, None],
            features=features[:, None],
            state=(hidden[:, :, None], cell[:, :, None]),
            position=counts[:, None],
            sees=counts.new_zeros(len(counts), 1, 0, dtype=torch.bool),
        )

    @classmethod
    def joined(cls, parts: list[Blocks]) -> Blocks:
        """All parts' nodes in order; a node sees no expansion made after its own."""
        width = parts[-1].sees.shape[2]
        hidden, cell = zip(*(part.state for part in parts), strict=True)
        return cls(
            nodes=torch.cat([part.nodes for part in parts], 1),
            features=torch.cat([part.features for part in parts], 1),
            state=(torch.cat(hidden, 2), torch.cat(cell, 2)),
            position=torch.cat([part.position for part in parts], 1),
            sees=torch.cat([pad(part.sees, (0, width - part.sees.shape[2])) for part in parts], 1),
        )

    def find(self, nodes: Tensor) -> Tensor:
        """Where nodes [B, F] stand among the R: [B, F]."""
        return (self.nodes[:, None] == nodes[:, :, None]).byte().argmax(-1)

    def take(self, places: Tensor) -> Blocks:
        """The nodes at places [B, F]."""
        rows = torch.arange(len(places), device=places.device)[:, None]  # [B, 1]
        hidden, cell = self.state
        return Blocks(
            nodes=self.nodes[rows, places],
            features=self.features[rows, places],
            state=(hidden[:, rows, places], cell[:, rows, places]),
            position=self.position[rows, places],
            sees=self.sees[rows, places],
        )

    def keep(self, rows: Tensor) -> Blocks:
        """These rows of the batch, int64 [R], in this order."""
        hidden, cell = self.state
        return Blocks(
            nodes=self.nodes[rows],
            features=self.features[rows],
            state=(hidden[:, rows], cell[:, rows]),
            position=self.position[rows],
            sees=self.sees[rows],
        )
