"""Processed state of a session's rows: the owners of slots, and the slots visible to a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.components.targets.forward.drafted import Drafted
from specframe.kernel.errors import InputError
from specframe.kernel.types import Committed, Prompts, TokenTree, Verdict
from specframe.neural.cache import SlotCache

FIRST = 1024
"""Number of positions of each row allocated first; a session of many slots and a long context fills few of them."""


@dataclass(frozen=True)
class AttentionView:
    """Range of the attention of a kind of layer: a sliding window, a chunk, or everything."""

    window: int | None = None
    """Number of visible positions, a token's own included."""
    chunk: int | None = None
    """Chunk size: the visible positions start at its last multiple."""

    @property
    def limit(self) -> int | None:
        """Number of positions up to which everything is seen."""
        return self.window or self.chunk

    def within(self, length: int) -> AttentionView:
        """The view itself where it hides any of the given number of positions, else `ALL`."""
        return self if self.limit is not None and length > self.limit else ALL

    def hides(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Returns whether keys at positions [B or 1, 1, S] are hidden from queries at [B, N, 1]: [B, N, S]."""
        if self.window is not None:
            return queries - keys >= self.window
        if self.chunk is not None:
            return queries // self.chunk != keys // self.chunk
        return torch.zeros_like(queries, dtype=torch.bool)


ALL = AttentionView()


class State:
    """The rows of a session. Row b's committed tokens fill the slots 0 .. filled[b] - 1.

    Trees are written from the same slot on in every row, behind the longest one: that is a slice, not a
    scatter. Shorter rows get a masked gap, which closes when the accepted path moves down.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        room: int,
        dtype: torch.dtype,
        device: torch.device,
        widths: Callable[[int], int] | None = None,
    ) -> None:
        """Begins with no rows, of at most `slots`, and with storage for the first positions of `room`.

        Storage is doubled when it is full; with `widths` its sizes are those that it gives.
        """
        self.cache = SlotCache(layers, min(room, FIRST) if widths is None else 1, slots, widths)
        self.room = room
        self.dtype = dtype  # of masks
        self._begin(device)

    def reopen(
        self, slots: int, room: int, dtype: torch.dtype, device: torch.device, widths: Callable[[int], int] | None
    ) -> bool:
        """Begins another session in the same storage; false, and no change, where that one needs other storage.

        Storage of many slots takes longer to allocate than a short prompt to read.
        """
        if widths or (slots, room, dtype, device) != (self.cache.rows, self.room, self.dtype, self.length.device):
            return False
        self.cache.clear()
        self._begin(device)
        return True

    def _begin(self, device: torch.device) -> None:
        self.length = torch.zeros(0, dtype=torch.int64, device=device)  # [B], processed tokens
        self.filled: list[int] = []  # the same on the host
        self.taken = 0  # further slots that are taken in every row: by the tokens that `before` leaves out
        self.features: Mapping[str, Tensor] = {}  # of the last forward
        self.drafted: Drafted | None = None  # the layers that ran over the unfinished draft
        self.admitted: Prompts | None = None  # new rows, until their commit
        self.ahead: list[int] = []  # the tokens of a prompt that were read before its admission, in the last row
        self.ahead_features: list[Mapping[str, Tensor]] = []  # of its pieces

    @property
    def base(self) -> int:
        """The first slot of the next tree."""
        return max(self.filled) + self.taken

    def aim_prompts(self, prompts: Prompts) -> int:
        """Points the cache at the rows behind the session's; returns how many tokens of them were read ahead.

        What was read of another prompt stays, if its slot does. Raises InputError when slots or positions are used up.
        """
        row, width = len(self.filled), prompts.tokens.shape[1]
        self._require_slots(len(prompts.tokens))
        self._require(width, f"a prompt of {width} tokens")
        start = len(self.ahead)
        if start and (len(prompts.tokens) > 1 or prompts.tokens[0, :start].tolist() != self.ahead):
            start = 0
            if row + len(prompts.tokens) == self.cache.rows:
                self.ahead, self.ahead_features = [], []
        if start:
            self.cache.copy_row((self.cache.rows or 1) - 1, row, start)
        self.cache.aim(start, width, row)
        return start

    def aim_ahead(self, prompt: Sequence[int], limit: int) -> list[int]:
        """The next piece of a prompt to read, at whose slots of the last row the cache is pointed; empty at its end.

        Raises InputError when slots or positions are used up.
        """
        self._require_slots(1)
        if list(prompt[: len(self.ahead)]) != self.ahead:
            self.ahead, self.ahead_features = [], []
        start = len(self.ahead)
        piece = list(prompt[start : min(start + limit, len(prompt) - 1)])
        if piece:
            self._require(start + len(piece), f"a prompt of {len(prompt)} tokens")
            self.cache.aim(start, start + len(piece), (self.cache.rows or 1) - 1)
        return piece

    def take_ahead(self, features: Mapping[str, Tensor], start: int) -> Mapping[str, Tensor]:
        """The features of a whole prompt, given those from token `start` on; forgets the part read ahead."""
        if start == 0:
            return features
        parts = [*self.ahead_features, features]
        self.ahead, self.ahead_features = [], []
        return {tap: torch.cat([part[tap] for part in parts], 1) for tap in features} if len(parts) > 1 else features

    def _require_slots(self, count: int) -> None:
        if len(self.filled) + count > (self.cache.rows or 0):
            raise InputError(f"the session's {self.cache.rows} slots are taken; open it with more")

    def join(self, prompts: Prompts, bonus: Tensor) -> Committed:
        """Takes the admitted rows in: their prompts shifted by one, the first token [A] behind them, and features."""
        tokens = torch.zeros_like(prompts.tokens)
        tokens[:, :-1] = prompts.tokens[:, 1:]
        tokens.scatter_(1, prompts.count[:, None] - 1, bonus[:, None])
        counts: list[int] = prompts.count.tolist()
        self.length = torch.cat([self.length, prompts.count])
        self.filled += counts
        self.admitted = self.drafted = None
        return Committed(tokens, prompts.count, self.features, bonus, prompts, counts)

    def aim(self, count: int) -> None:
        """Points the cache at the slots of the next tree. Raises InputError when they are used up."""
        end = self.base + count
        self._require(end, f"{self.base} positions and {count} nodes to score")
        self.cache.aim(self.base, end)

    def aim_nodes(self, tree: TokenTree, nodes: Tensor) -> None:
        """Points the cache at the slots of nodes [B, F] of a draft in the making; there is always room for them."""
        end = self.base + tree.tokens.shape[1]
        if end > self.cache.capacity:
            self.cache.grow(max(end, 2 * self.cache.capacity))
        self.cache.aim(self.base + nodes, end)

    def visible(self, tree: TokenTree, nodes: Tensor) -> Tensor:
        """Returns the slots visible to nodes [B, F] of a tree, themselves included: [B, F, base + N] bool."""
        count = tree.tokens.shape[1]
        committed = torch.arange(self.base, device=nodes.device) < self.length[:, None]  # [B, base]
        path = tree.ancestors.gather(1, nodes[..., None].expand(-1, -1, count))  # [B, F, N]
        return torch.cat([committed[:, None].expand(-1, path.shape[1], -1), path], 2)

    def _require(self, end: int, what: str) -> None:
        """Makes room for `end` positions. Raises InputError, in the words of `what`, where the session has less."""
        if end > self.room:
            raise InputError(f"{what} do not fit into the session's {self.room} positions; open it with more room")
        if end > self.cache.capacity:
            self.cache.grow(min(max(end, 2 * self.cache.capacity), self.room))

    def mask(self, tree: TokenTree, view: AttentionView = ALL) -> Tensor | None:
        """0 where a node may look, -inf elsewhere: [B, 1, N, base + N], or None if it may look anywhere.

        A committed token's slot is its position, so a window hides the first slots of a row.

        Every node sees itself, padding too, so no softmax is empty. Both sdpa and eager attention take a float mask,
        and sdpa need not convert it once per layer.
        """
        batch, count = tree.tokens.shape
        base = self.base
        gaps = min(self.filled) < base
        distant = view.within(base + tree.levels + 1) is not ALL
        if count == 1 and not gaps and not distant:
            return None
        mask = torch.zeros(batch, 1, count, base + count, dtype=self.dtype, device=tree.tokens.device)
        if count > 1:
            mask[:, 0, :, base:].masked_fill_(~tree.ancestors, -torch.inf)
        if gaps:
            slots = torch.arange(base, device=mask.device)
            gap = slots >= self.length[:, None]  # [B, base]
            mask[..., :base].masked_fill_(gap[:, None, None], -torch.inf)
        if distant:
            positions = self.length[:, None] + tree.depth  # [B, N]
            slots = torch.arange(base, device=mask.device).expand(1, 1, -1)
            mask[:, 0, :, :base].masked_fill_(view.hides(positions[..., None], slots), -torch.inf)
            mask[:, 0, :, base:].masked_fill_(view.hides(positions[..., None], positions[:, None]), -torch.inf)
        return mask

    def mask_piece(self, start: int, count: int, view: AttentionView = ALL) -> Tensor:
        """The same for the tokens of a prompt from `start` on: [1, 1, count, start + count]."""
        keys = torch.arange(start + count, device=self.length.device)
        queries = keys[None, start:, None]  # [1, count, 1]
        hidden = (keys > queries) | view.hides(queries, keys[None, None])
        mask = torch.zeros(1, 1, count, start + count, dtype=self.dtype, device=keys.device)
        return mask.masked_fill_(hidden, -torch.inf)

    def positions(self, tree: TokenTree, context: int) -> Tensor:
        """The nodes' positions [B, N]. Those beyond the context get its last one: their scores mean nothing,
        and the session's budget ends before them, but a table of positions must not be left."""
        positions = self.length[:, None]  # [B, 1]
        if tree.tokens.shape[1] > 1:
            positions = positions + tree.depth  # [B, N]
        if self.base + tree.levels >= context:
            positions = positions.clamp(max=context - 1)
        return positions

    def before(self, count: int) -> State:
        """The rows as they were `count` tokens ago, on the same keys and values: nodes are written behind all rows.

        A row that had fewer tokens sees none.
        """
        earlier = copy(self)
        earlier.length = self.length - count
        earlier.filled = [have - count for have in self.filled]
        earlier.taken = self.taken + count
        return earlier

    def commit(self, tree: TokenTree, verdict: Verdict) -> Committed:
        """Commits a verdict on a tree; keeps the keys and values of the roots and the accepted paths."""
        paths = [[0, *path] for path in verdict.to_host(tree).paths]
        counts = [len(path) for path in paths]
        longest = max(counts)
        features = self.features
        kept = torch.tensor([[*path, *[0] * (longest - len(path))] for path in paths], device=verdict.path.device)
        if tree.levels:
            features = {
                tap: values.gather(1, kept[..., None].expand(-1, -1, values.shape[-1]))
                for tap, values in features.items()
            }
        self.advance(kept, paths)
        self.length = self.length + verdict.count
        tokens = verdict.emitted(tree)[:, :longest]
        return Committed(tokens, verdict.count, features, root=verdict.bonus, counts=counts)

    def advance(self, kept: Tensor, paths: list[list[int]]) -> None:
        """Commits the root and path of every row: kept [B, A + 1] nodes; row b takes paths[b] of them."""
        base, width = self.base, max(map(len, paths))
        start = min(_settled(path, width) if have == base else 0 for path, have in zip(paths, self.filled, strict=True))
        if start < width:  # a row with a shorter path moves junk behind its end, which the next tree overwrites
            even = min(self.filled) == base
            first = base + start if even else self.length[:, None] + torch.arange(start, width, device=kept.device)
            self.cache.compact(base + kept[:, start:width], first)
        self.filled = [have + len(path) for have, path in zip(self.filled, paths, strict=True)]
        self.drafted = None

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        order = rows.tolist()
        self.cache.keep(rows)
        self.length = self.length[rows]
        self.filled = [self.filled[row] for row in order]
        self.features, self.drafted = {}, None


def _settled(path: list[int], width: int) -> int:
    """Returns the number of nodes of a kept path that stand in line already; `width` if all do."""
    return next((step for step, node in enumerate(path) if node != step), width)


def check_prompts(prompts: Prompts, context: int, vocab: int) -> None:
    """Raises InputError for prompts that the model cannot read."""
    width = prompts.tokens.shape[1]
    shortest, longest = prompts.count.aminmax()
    if shortest < 1 or longest > width:
        raise InputError(f"a prompt has {int(shortest if shortest < 1 else longest)} tokens; it needs 1 to {width}")
    if longest > context:
        raise InputError(f"a prompt has {int(longest)} tokens, more than the model's context of {context}")
    low, high = prompts.tokens.aminmax()
    if low < 0 or high >= vocab:
        raise InputError(
            f"a prompt holds token {int(low if low < 0 else high)}, outside the vocabulary "
            f"of {vocab}; is it from another tokenizer?"
        )
