"""What a block drafter remembers of the committed text: the keys and values of its context features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe import CompositionError, Predicted
from specframe.neural import Blocks, Embed, Pending, RowSession, gather

if TYPE_CHECKING:
    from specframe import Frontier
    from specframe_dflash.backbone import Backbone


class BlockSession(RowSession):
    """The decoding state of a session's rows: a block is drafted below the root, and nothing of it is remembered.

    Slot i of the cache holds the keys and values of context feature i, in all layers.

    The arguments are those of `specframe.neural.FeatureSession`.
    """

    def __init__(self, network: Backbone, embed: Embed, slots: int, *, room: int = 0, spare: int = 256) -> None:
        super().__init__(network.fc.weight, slots, room, spare, layers=len(network.layers))
        self.network = network
        self.embed = embed

    def pairs(self, tokens: Tensor, features: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The tokens [B, M] and the context features [B, M, H]."""
        return tokens, self.network.fuse(gather(self.network.spec, features))

    def seen(self, counts: list[int]) -> Tensor:
        """Which slots hold features of rows that have so many: [B, W] bool, W up to the longest row's end."""
        device = self.network.fc.weight.device
        slots = torch.arange(max(counts, default=0), device=device)
        return slots < torch.tensor(counts, device=device)[:, None]

    def take(self, pending: Pending) -> Blocks:
        """Caches keys and values of new features, and runs the block below every row's root."""
        tokens, context = pending.pairs
        batch, length = tokens.shape
        starts, device = pending.starts, tokens.device
        places = torch.arange(length, device=device).expand(batch, -1)
        even = min(starts) == max(starts)
        places = places + (starts[0] if even else torch.tensor(starts, device=device)[:, None])  # [B, M]
        width = max(starts) + length
        self.reserve(width)
        self.cache.aim(starts[0] if even else places, width, pending.first)
        new = self.network.remember(context, places)
        memory = [self.cache.update(*part, layer) for layer, part in enumerate(new)]
        sees = self.seen(pending.held)
        sees = pad(sees, (0, width - sees.shape[1]))[:, None]  # [B, 1, W]
        counts = torch.tensor(pending.held, device=device)
        ends = torch.tensor(pending.fresh, device=device)[:, None] - 1
        rows = self.network.start(tokens.gather(1, ends), self.embed)  # [B, 1, S, H]
        states = self.network(rows, memory, sees, counts[:, None])[:, 0]  # [B, K, H]
        return Blocks.of_root(states, (), counts)

    def expand(self, frontier: Frontier) -> Predicted:
        """The block below the root, which may be asked for again. Raises CompositionError below the block."""
        if frontier.tree.levels == 0:
            self.settle()
        elif bool((frontier.nodes != 0).any()):
            raise too_long(self.network.levels)
        return self.network.predicted(self.draft[0].outputs.expand(-1, frontier.nodes.shape[1], -1, -1))


def too_long(levels: int) -> CompositionError:
    """The error of a tree that is deeper than a block is long."""
    return CompositionError(
        f"the drafter's blocks are of {levels} tokens, and nothing is drafted below them: make the tree at most "
        f"{levels} deep, or train a drafter of a larger block_size"
    )
