"""Decoding state of a batch: the adapter's keys and values of the committed text, and the current draft.

An entry of the adapter is the exit's feature of one token. With a single attention, an entry's key and value depend on
that entry alone, so committed entries are never recomputed, and the next commit overwrites those of the draft.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe.neural import Blocks, Pending, RowSession, tensor_on
from specframe.plugin import Frontier, Predicted
from specframe_self.kangaroo.network import Adapter


class Exits(RowSession):
    """The decoding state of a session's rows.

    Slot i of a row holds the entry of its token i; the root's follows those of the committed tokens before it.
    After the longest row's root stand the draft's, at the same slots in every row.

    Args:
        network: the adapter.
        exits: the exit's features of frontier nodes, [B, F, D], by the target's first layers.
        slots: how many rows there will be, at most.
        room: how many positions a row will take, at most; the cache has room for them.
        spare: how many slots more than it needs the cache gets when it is made or grown.
    """

    def __init__(
        self, network: Adapter, exits: Callable[[Frontier], Tensor], slots: int, *, room: int = 0, spare: int = 256
    ) -> None:
        super().__init__(next(network.parameters()), network.spec, slots, room, spare)
        self.network = network
        self.exits = exits
        self.rooted = self.visible  # [B, W], slots that hold committed entries or the root's
        self._roots: Tensor | None = None  # [B, 1, D], set while a draft starts and they are not yet processed

    def seen(self, counts: list[int]) -> Tensor:
        """Returns a mask of the slots with the rows' `counts` entries: [B, W] bool, W up to the longest row's end."""
        device = self.rooted.device
        return torch.arange(max(counts, default=0), device=device) < tensor_on(device, counts)[:, None]

    def take(self, pending: Pending) -> Blocks:
        """Caches the keys and values of pending entries and, when a draft starts, of the roots after them.

        Only the outputs at the roots are used. Before a draft starts there are none, and zeros are returned.
        """
        exits = pending.pairs[-1]
        counts, device = tensor_on(exits.device, pending.counts), exits.device
        rows, ends = torch.arange(len(exits), device=device), tensor_on(device, pending.fresh)
        roots = None
        if pending.first == 0:
            roots, self._roots = self._roots, None
        if roots is not None:
            exits = pad(exits, (0, 0, 0, 1))
            exits[rows, ends] = roots[:, 0]
        length = exits.shape[1]
        seen = self.seen([count + (roots is not None) for count in pending.counts])
        slots = self.aim_after(pending, length, seen.shape[1])
        outputs = self.network(exits, slots, seen[:, None, None].expand(-1, -1, length, -1), self.cache)
        root_outputs = torch.zeros_like(outputs[:, :1]) if roots is None else outputs[rows, ends][:, None]
        return Blocks.of_root(root_outputs, (), counts)

    def expand(self, frontier: Frontier) -> Predicted:
        """Returns the predictions of the level below each frontier node; expanding the root starts a draft.

        The parent of every node except the root must have been expanded before.
        """
        exits, nodes = self.exits(frontier), frontier.nodes
        if frontier.tree.levels == 0:
            return Predicted(self._start(exits).outputs)
        batch, width = nodes.shape
        origin = Blocks.among(self.draft, frontier.tree.parent.gather(1, nodes).clamp(min=0))
        own = torch.eye(width, dtype=torch.bool, device=nodes.device).expand(batch, -1, -1)
        sees = torch.cat([origin.sees, own], 2)  # [B, F, S + F]
        end = self.rooted.shape[1] + sees.shape[2]
        self.reserve(end)
        self.cache.aim(end - width, end)
        mask = torch.cat([self.rooted[:, None].expand(-1, width, -1), sees], 2)  # [B, F, W + S + F]
        position = origin.position + 1
        outputs = self.network(exits, position, mask[:, None], self.cache)[:, :, None]  # [B, F, 1, D]
        self.draft.append(Blocks(nodes, outputs, (), position, sees))
        is_root = (nodes == 0)[..., None, None]  # the root may be requested again together with deeper nodes
        return Predicted(torch.where(is_root, self.draft[0].outputs, outputs))

    def _start(self, roots: Tensor) -> Blocks:
        """Processes the roots, given the exit's features at them, [B, 1, D].

        If entries of all rows are pending, one forward pass processes both.
        """
        self._roots = roots
        self.flush()
        if self._roots is not None:
            self.draft = [self.take(Pending(0, (roots[:, :0],), [0] * len(roots), self.counts, self.counts))]
        del self.draft[1:]
        self.rooted = self.seen([count + 1 for count in self.counts])
        return self.draft[0]
