"""What is asked of a drafter's layer in one forward: inputs, where they stand, and what they see."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Queries:
    """T entries of a forward, which sees S slots of the cache."""

    inputs: Tensor  # [B, T, D]
    positions: Tensor  # [B, T] int64
    mask: Tensor  # [B, T, S] bool, which slots each of them sees

    @classmethod
    def behind(cls, masks: Tensor, position: Tensor, path: Tensor) -> Queries:
        """A run of masks behind each of F entries: masks [B, F, M, D], the entries' positions [B, F].

        A mask sees what its entry sees, path [B, F, S], and of the masks, in the slots S .. S + F M - 1, those
        before it in its run, and itself.
        """
        batch, runs, count, _ = masks.shape
        device = masks.device
        ahead = torch.arange(1, count + 1, device=device)
        own = torch.eye(runs, dtype=torch.bool, device=device).kron(_causal(count, device))  # [F M, F M]
        return cls(
            inputs=masks.flatten(1, 2),
            positions=(position[..., None] + ahead).flatten(1),
            mask=torch.cat([repeated(path, count), own.expand(batch, -1, -1)], 2),
        )

    def followed_by(self, others: Queries) -> Queries:
        """These, which see nothing of the others, and behind them the others."""
        more = others.mask.shape[2] - self.mask.shape[2]
        return Queries(
            inputs=torch.cat([self.inputs, others.inputs], 1),
            positions=torch.cat([self.positions, others.positions], 1),
            mask=torch.cat([pad(self.mask, (0, more)), others.mask], 1),
        )


def repeated(path: Tensor, count: int) -> Tensor:
    """What each of F entries sees, for `count` queries of every one: [B, F, S] -> [B, F count, S]."""
    return path if count == 1 else path[:, :, None].expand(-1, -1, count, -1).flatten(1, 2)


def _causal(length: int, device: torch.device) -> Tensor:
    """Each sees itself and those before it: [length, length] bool."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()
