"""A growing tree: levels are appended, and the drafter's proposals below them are requested level by level."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.kernel.types import Draw, Expand, Frontier, Proposal, TokenTree


class Growth:
    """A tree that starts as a root and grows level by level.

    Appended nodes keep their index, so a drafter may hold state per node. `tree` is the tree so far,
    for a `Frontier`, for `Sampling.law`, or as the finished draft.
    """

    def __init__(self, root: Tensor) -> None:
        self._tokens = [root[:, None]]
        self._parents = [root.new_full((len(root), 1), -1)]
        self._valid: list[Tensor | None] = [None]
        self._draws: list[Draw | Tensor] = [Draw.TOP]
        self._q_rows: list[Tensor | None] = [None]
        self._laws: list[Tensor] = []
        self._support: Tensor | None = None
        self._maybe_invalid = False
        self._tree: TokenTree | None = None
        self.size = 1
        """Number of nodes so far, which is the index of the next node."""
        self.law_count = 0
        """Number of rows of q so far, which is the row of the next law."""

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

        `draw` is one Draw for all nodes, or int64 [C] with one for each column. `valid` [B, C] marks the real
        nodes; None: all. Descendants of an invalid node are always invalid, and the token of an invalid node
        becomes 0. Sampled nodes need `q_rows` [B, C], the rows of q that `record` returned for the laws they
        were drawn from.
        """
        if self._maybe_invalid:
            parent_validity = self._validity().gather(1, parents)  # [B, C]
            valid = parent_validity if valid is None else valid & parent_validity
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

    def record(self, law: Tensor, support: Tensor | None = None) -> int:
        """Stores laws [B, M, v] from which nodes will be drawn; returns the row of the first one.

        Columns are the tokens of `support`, equal for all laws of a tree; None: the whole vocabulary.
        """
        first = self.law_count
        self._support = support
        self._laws.append(law)
        self.law_count += law.shape[1]
        self._tree = None
        return first

    @property
    def tree(self) -> TokenTree:
        """A snapshot of the tree so far, unaffected by later growth."""
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
            support=self._support,
        )

    def _validity(self) -> Tensor:
        parts = zip(self._valid, self._tokens, strict=True)
        return torch.cat([torch.ones_like(t, dtype=torch.bool) if v is None else v for v, t in parts], 1)


class Forecast:
    """The proposals below successive beams, requested level by level, over the whole vocabulary.

    A drafter that proposes K levels is called for every K-th beam; the levels between come from its last
    proposal, at the frontier node that is each beam node's ancestor.
    """

    def __init__(self, expand: Expand, growth: Growth) -> None:
        self._expand = expand
        self._growth = growth
        self._proposal: Proposal | None = None
        self._level = 0
        self._origin: Tensor | None = None  # [B, W] the frontier node above each beam node; None: itself

    def next_level(self, beam: Tensor, parents: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits [B, W, V] and confidence [B, W], or None, of the level below the beam's nodes [B, W].

        `parents` [B, W] is the index of each node's parent in the previous beam; None for the first
        beam.
        """
        if self._proposal is None or self._level == self._proposal.logits.shape[2]:
            self._proposal = self._expand(Frontier(self._growth.tree, beam)).whole
            self._level, self._origin = 0, None
        elif parents is not None:
            self._origin = parents if self._origin is None else self._origin.gather(1, parents)
        logits = self._proposal.logits[:, :, self._level]  # [B, F, V]
        confidence = self._proposal.confidence
        if confidence is not None:
            confidence = confidence[:, :, self._level]  # [B, F]
        self._level += 1
        if self._origin is None:
            return logits, confidence
        rows = self._origin[..., None].expand(-1, -1, logits.shape[-1])
        return logits.gather(1, rows), None if confidence is None else confidence.gather(1, self._origin)


def one_of(weights: Tensor, mass: Tensor) -> Tensor:
    """Laws to draw from: weights [B, ..., V] divided by their sum, mass [B, ...]; where mass is 0, one-hot at index 0.

    Give unused draws no mass, so that they have one option only: in a certificate every draw is a branch.
    """
    law = weights / mass.where(mass > 0, torch.inf).to(weights.dtype)[..., None]
    law[..., 0] += mass <= 0
    return law
