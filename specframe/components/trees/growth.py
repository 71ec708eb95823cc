"""A tree in the making: levels are appended, node indices stay, laws are kept with the draws."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.kernel.types import Draw, TokenTree


class Growth:
    """A tree that starts as its root and grows a level at a time.

    Everything a policy appends keeps its index, so a drafter may hold state per node. `tree` is the
    tree so far, ready for a `Frontier`, for `Sampling.law`, or as the finished draft.
    """

    def __init__(self, root: Tensor) -> None:
        self._tokens = [root[:, None]]
        self._parents = [root.new_full((len(root), 1), -1)]
        self._valid: list[Tensor | None] = [None]
        self._draws: list[Draw | Tensor] = [Draw.TOP]
        self._q_rows: list[Tensor | None] = [None]
        self._laws: list[Tensor] = []
        self._maybe_invalid = False
        self._tree: TokenTree | None = None
        self.size = 1
        """Nodes so far: the index the next node will get."""
        self.law_count = 0
        """Rows of q so far: the row the next law will get."""

    @property
    def levels(self) -> int:
        """Depth of the tree."""
        return len(self._tokens) - 1

    def add(
        self,
        tokens: Tensor,
        parents: Tensor,
        draw: Draw | Tensor = Draw.TOP,
        *,
        valid: Tensor | None = None,
        q_rows: Tensor | None = None,
    ) -> None:
        """Appends a level: tokens [B, C] below nodes [B, C], siblings in the order they are to be tried.

        `draw` is how they were drawn: one Draw for all of them, or int64 [C], one for each column. `valid`
        [B, C] marks which of them are real; None: all. Below an invalid node everything is invalid in any
        case, and an invalid node's token becomes 0. Sampled nodes come with the rows of q, [B, C], that
        `record` gave the laws they were drawn from.
        """
        if self._maybe_invalid:
            above = self._validity().gather(1, parents)  # [B, C]
            valid = above if valid is None else valid & above
        if valid is not None:
            tokens = tokens.masked_fill(~valid, 0)
            self._maybe_invalid = True
        self._tokens.append(tokens)
        self._parents.append(parents)
        self._valid.append(valid)
        self._draws.append(draw)
        self._q_rows.append(q_rows)
        self.size += tokens.shape[1]
        self._tree = None

    def record(self, law: Tensor) -> int:
        """Keeps the laws [B, M, V] that nodes are about to be drawn from; returns the first one's row."""
        first = self.law_count
        self._laws.append(law)
        self.law_count += law.shape[1]
        self._tree = None
        return first

    @property
    def tree(self) -> TokenTree:
        """The tree so far, as a value that later growth leaves alone."""
        if self._tree is None:
            self._tree = self._assemble()
        return self._tree

    def _assemble(self) -> TokenTree:
        tokens = torch.cat(self._tokens, 1)
        valid = self._validity() if self._maybe_invalid else torch.ones_like(tokens, dtype=torch.bool)
        if set(self._draws) == {Draw.TOP}:
            draw = torch.zeros_like(tokens)
        else:
            levels = zip(self._draws, self._tokens, strict=True)
            draw = torch.cat([d.expand_as(t) if isinstance(d, Tensor) else torch.full_like(t, d) for d, t in levels], 1)
        q = q_row = None
        if self._laws:
            q = torch.cat(self._laws, 1)  # [B, P, V]
            rows = zip(self._q_rows, self._tokens, strict=True)
            q_row = torch.cat([torch.zeros_like(t) if r is None else r for r, t in rows], 1)
        return TokenTree(
            tokens=tokens,
            parent=torch.cat(self._parents, 1),
            valid=valid,
            draw=draw,
            levels=self.levels,
            q=q,
            q_row=q_row,
        )

    def _validity(self) -> Tensor:
        parts = zip(self._valid, self._tokens, strict=True)
        return torch.cat([torch.ones_like(t, dtype=torch.bool) if v is None else v for v, t in parts], 1)
