"""What P-EAGLE's drafter remembers while it decodes: the committed pairs in every layer, and one draft's levels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe import CompositionError, Predicted
from specframe.neural import Blocks, Embed, FeatureSession, Pending, SlotCache

if TYPE_CHECKING:
    from specframe import Frontier
    from specframe_eagle.parallel.network import Parallel


class ParallelSession(FeatureSession):
    """The decoding state of a session's rows: all levels are asked for with what was committed, and none below them.

    Slot i of the cache holds pair i in every layer. Where there are several, a pair's keys above the first depend on
    what it saw there, so pairs see no later ones. Mask rows stand behind all pairs for one forward.

    The arguments are those of `specframe.neural.FeatureSession`.
    """

    network: Parallel

    def __init__(self, network: Parallel, embed: Embed, slots: int, *, room: int = 0, spare: int = 256) -> None:
        super().__init__(network, embed, slots, room=room, spare=spare)
        self.cache = SlotCache(network.layer.count, 0, slots)

    def take(self, pending: Pending) -> Blocks:
        """Caches pending pairs, and asks for all levels below every row's root."""
        (pairs,), starts, device = pending.pairs, pending.starts, pending.pairs[0].device
        batch, length, _ = pairs.shape
        masks = self.network.mask(pairs[:, -1])  # [B, K - 1, 2H]
        extra = masks.shape[1]
        counts = torch.tensor(pending.held, device=device)
        steps = torch.arange(length, device=device)
        places = torch.tensor(starts, device=device)[:, None] + steps  # [B, M]
        behind = max(starts) + length  # the first slot that no row writes a pair to
        ends = torch.arange(behind, behind + extra, device=device).expand(batch, -1)
        keys = torch.arange(behind + extra, device=device)
        held = keys < counts[:, None]  # [B, W]
        text = held[:, None] & (keys <= places[..., None])  # [B, M, W]
        below = held[:, None] | ((keys >= behind) & (keys <= ends[0][:, None]))  # [B, K - 1, W]
        ahead = counts[:, None] + torch.arange(extra, device=device)
        width = behind + extra
        self.reserve(width)
        even = min(starts) == max(starts)
        self.cache.aim(starts[0] if even else torch.cat([places, ends], 1), width, pending.first)
        outputs = self.network.layer(
            torch.cat([pairs, masks], 1),
            torch.cat([places, ahead], 1),
            torch.cat([text, below], 1)[:, None],
            self.cache,
        )
        last = torch.tensor(pending.fresh, device=device) - 1
        rows = torch.arange(batch, device=device)
        block = torch.cat([outputs[rows, last][:, None], outputs[:, length:]], 1)  # [B, K, H]
        return Blocks.of_root(block, (), counts)

    def expand(self, frontier: Frontier) -> Predicted:
        """The levels below the root, which may be asked for again. Raises CompositionError below them."""
        if frontier.tree.levels == 0:
            self.settle()
        elif bool((frontier.nodes != 0).any()):
            levels = self.network.levels
            raise CompositionError(
                f"the drafter peagle drafts {levels} levels and nothing below them: make the tree at most {levels} "
                "deep, or raise levels"
            )
        outputs = self.draft[0].outputs.expand(-1, frontier.nodes.shape[1], -1, -1)
        return self.network.predicted(outputs)
