"""What a batch has processed: which slots are whose, and what a node may see of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.kernel.errors import InputError
from specframe.kernel.types import Prompts, TokenTree
from specframe.neural.cache import SlotCache


@dataclass
class State:
    """One session's rows. Row b's committed tokens fill the slots 0 .. filled[b] - 1.

    Trees are written from the same slot on in every row, behind the longest one: that is a slice, not a
    scatter. Shorter rows get a masked gap, which closes when the accepted path moves down.
    """

    cache: SlotCache
    dtype: torch.dtype  # of masks
    length: Tensor  # [B] int64, processed tokens
    filled: list[int]  # the same on the host
    features: Mapping[str, Tensor]  # of the last forward
    prompts: Prompts | None  # until the first commit

    @property
    def base(self) -> int:
        """The first slot of the next tree."""
        return max(self.filled)

    def aim(self, count: int) -> None:
        """Points the cache at the slots of the next tree. Raises InputError when they are used up."""
        end = self.base + count
        if end > self.cache.capacity:
            raise InputError(
                f"the session's room is used up: {self.base} positions taken, {count} nodes to score, "
                f"{self.cache.capacity} in all; prefill with more room"
            )
        self.cache.aim(self.base, end)

    def mask(self, tree: TokenTree) -> Tensor | None:
        """0 where a node may look, -inf elsewhere: [B, 1, N, base + N], or None if it may look anywhere.

        Every node sees itself, padding too, so no softmax is empty. A float mask is what sdpa and eager
        attention both take, and sdpa need not convert it once per layer.
        """
        batch, count = tree.tokens.shape
        base = self.base
        gaps = min(self.filled) < base
        if count == 1 and not gaps:
            return None
        mask = torch.zeros(batch, 1, count, base + count, dtype=self.dtype, device=tree.tokens.device)
        if count > 1:
            mask[:, 0, :, base:].masked_fill_(~tree.ancestors, -torch.inf)
        if gaps:
            slots = torch.arange(base, device=mask.device)
            gap = slots >= self.length[:, None]  # [B, base]
            mask[..., :base].masked_fill_(gap[:, None, None], -torch.inf)
        return mask

    def advance(self, kept: Tensor, paths: list[list[int]]) -> None:
        """Commits the root and path of every row: kept [B, A + 1] nodes, of which row b takes paths[b]."""
        base, width = self.base, max(map(len, paths))
        start = min(_settled(path, width) if have == base else 0 for path, have in zip(paths, self.filled, strict=True))
        if start < width:  # a row with a shorter path moves junk behind its end, which the next tree overwrites
            even = min(self.filled) == base
            first = base + start if even else self.length[:, None] + torch.arange(start, width, device=kept.device)
            self.cache.compact(base + kept[:, start:width], first)
        self.filled = [have + len(path) for have, path in zip(self.filled, paths, strict=True)]

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows of the batch, int64 [R], in this order."""
        order = rows.tolist()
        if order == list(range(len(self.filled))):
            return
        self.cache.keep(rows)
        self.length = self.length[rows]
        self.filled = [self.filled[row] for row in order]
        self.features = {tap: values[rows] for tap, values in self.features.items()}
        if self.prompts is not None:
            self.prompts = Prompts(self.prompts.tokens[rows], self.prompts.count[rows])


def _settled(path: list[int], width: int) -> int:
    """How many nodes of a kept path stand in line already; `width` if all do."""
    return next((step for step, node in enumerate(path) if node != step), width)
