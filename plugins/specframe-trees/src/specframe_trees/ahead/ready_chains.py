"""Chains after a draft that is being scored, one below each guess of the token that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe.plugin import (
    Committed,
    Context,
    Draw,
    Expand,
    Frontier,
    Growth,
    Promise,
    Proposal,
    TokenTree,
    one_of,
)


@dataclass(frozen=True)
class Chains:
    """One chain per row for the next draft; a row without a chain has invalid nodes."""

    tokens: Tensor  # [B, W] int64
    valid: Tensor  # [B, W] bool
    q: Tensor | None = None  # [B, W, V], if they are drawn

    @classmethod
    def none(cls, like: Tensor) -> Chains:
        """Returns no chains for the rows of a tensor [B]."""
        return cls(like.new_zeros(len(like), 0, dtype=torch.int64), like.new_zeros(len(like), 0, dtype=torch.bool))

    def to_tree(self, root: Tensor, draw: Draw) -> TokenTree:
        """Returns the chains as a draft below root [B]."""
        if not self.valid.any():
            return TokenTree.root_only(root)
        tokens = torch.cat([root[:, None], self.tokens], 1)
        count = tokens.shape[1]
        places = torch.arange(count, device=root.device).expand_as(tokens)
        return TokenTree(
            tokens=tokens,
            parent=places - 1,
            valid=pad(self.valid, (1, 0), value=True),
            draw=torch.full_like(tokens, draw),
            levels=count - 1,
            q=self.q,
            q_row=None if self.q is None else (places - 1).clamp(min=0),
        )

    def take(self, rows: Tensor) -> Chains:
        """Returns the chains of these rows, int64 [R], in this order."""
        return Chains(self.tokens[rows], self.valid[rows], None if self.q is None else self.q[rows])

    def joined(self, more: int) -> Chains:
        """Returns a copy with `more` further rows without chains."""
        q = None if self.q is None else pad(self.q, (0, 0, 0, 0, 0, more))
        return Chains(pad(self.tokens, (0, 0, 0, more)), pad(self.valid, (0, 0, 0, more)), q)


@dataclass(frozen=True)
class Prepared:
    """M guesses of the bonus token after a draft, and a chain below each."""

    accepted: Tensor  # [B, M] int64, number of draft tokens before the guess
    guess: Tensor  # [B, M] int64
    real: Tensor  # [B, M] bool
    chains: Chains  # [B, W, M], with laws [B, W, M, V]

    def after(self, committed: Committed) -> Chains:
        """Returns the chains after the committed tokens, for rows whose bonus token was guessed."""
        last = committed.count[:, None] - 1  # [B, 1]
        bonus = committed.tokens.gather(1, last)
        found = self.real & (self.accepted == last) & (self.guess == bonus)  # [B, M], at most one per row
        which = found.byte().argmax(1)  # [B]
        rows = torch.arange(len(which), device=which.device)
        tokens, valid, q = self.chains.tokens, self.chains.valid, self.chains.q
        valid = valid[rows, :, which] & found.any(1)[:, None]
        return Chains(tokens[rows, :, which] * valid, valid, None if q is None else q[rows, :, which])


class After:
    """A tree policy that replays a draft and grows a chain below each guess of the token that follows it.

    Nodes are the draft's, then the guesses, then the chains level by level.
    """

    def __init__(self, draft: TokenTree, window: int, guesses: int | None, draw: Draw, nodes: int) -> None:
        self.promise = Promise(frozenset({draw, Draw.TOP}), nodes)
        self._draft, self._window, self._guesses, self._draw = draft, window, guesses, draw
        self._ends = torch.zeros(0)

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """Returns the draft, the guesses and the chains below root [B]."""
        draft = self._draft
        growth = Growth(root)
        proposals = [expand(Frontier(growth.tree, _nodes(draft, 0, 1)))]
        for level in range(1, draft.levels + 1):
            nodes = _nodes(draft, level, 1)
            growth.add(draft.tokens[:, level, None], nodes - 1, valid=draft.valid[:, level, None])
            proposals.append(expand(Frontier(growth.tree, nodes)))
        tokens, self._ends, real = self._guessed(proposals)
        nodes = _nodes(draft, growth.size, tokens.shape[1])
        growth.add(tokens, self._ends, valid=real)
        for _ in range(self._window):
            children = _nodes(draft, growth.size, tokens.shape[1])
            self._lengthen(growth, nodes, expand(Frontier(growth.tree, nodes)), context)
            nodes = children
        return growth.tree

    def drafted(self, tree: TokenTree) -> Prepared | None:
        """Returns the chains of the tree that the drafter returned; None without a draft, at the context's end."""
        first, guesses = self._draft.tokens.shape[1], self._ends.shape[-1]
        if tree.tokens.shape[1] <= first:
            return None

        def levels(values: Tensor) -> Tensor:
            return values[:, first + guesses :].unflatten(1, (self._window, guesses))

        q = None if tree.q is None else tree.q.unflatten(1, (self._window, guesses))
        chains = Chains(levels(tree.tokens), levels(tree.valid), q)
        guessed = slice(first, first + guesses)
        return Prepared(self._ends, tree.tokens[:, guessed], tree.valid[:, guessed], chains)

    def _guessed(self, proposals: Sequence[Proposal]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the guessed tokens, the draft's nodes that they follow, and which are valid, each [B, M]."""
        draft = self._draft
        if self._guesses is None:
            best = torch.cat([found.tokens(found.logits[:, 0].argmax(-1)) for found in proposals], 1)  # [B, N]
            end = draft.valid.sum(1, keepdim=True) - 1  # [B, 1]
            return best.gather(1, end), end, torch.ones_like(end, dtype=torch.bool)
        following = pad(draft.tokens.masked_fill(~draft.valid, -1), (0, 1), value=-1)  # [B, N + 1]
        found = [self._others(proposal, following[:, level + 1]) for level, proposal in enumerate(proposals)]
        tokens = torch.stack(found, 1)  # [B, N, F]
        ends = _nodes(draft, 0, len(found))[..., None].expand_as(tokens)
        real = draft.valid[..., None] & (tokens >= 0)
        return tokens.flatten(1), ends.flatten(1), real.flatten(1)

    def _others(self, proposal: Proposal, drafted: Tensor) -> Tensor:
        """Returns the best tokens without the drafted one [B], which the target rejected: [B, F], -1 for none."""
        assert self._guesses is not None
        logits = proposal.logits[:, 0, 0]  # [B, v]
        best = proposal.tokens(logits.topk(min(self._guesses + 1, logits.shape[1])).indices)
        others = (best == drafted[:, None]).byte().sort(stable=True, dim=1).indices  # sorts the drafted one last
        found = best.gather(1, others).masked_fill(best.gather(1, others) == drafted[:, None], -1)
        return pad(found, (0, max(0, self._guesses - found.shape[1])), value=-1)[:, : self._guesses]

    def _lengthen(self, growth: Growth, nodes: Tensor, proposal: Proposal, context: Context) -> None:
        """Appends a token below each of the nodes [B, M]."""
        if self._draw is Draw.TOP:
            growth.add(proposal.tokens(proposal.logits[:, :, 0].argmax(-1)), nodes)
            return
        law = context.sampling.law(proposal.whole.logits[:, :, 0], growth.tree, nodes)  # [B, M, V]
        first = growth.record(law)
        valid = growth.tree.valid.gather(1, nodes)
        tokens = context.random.categorical(one_of(law, valid.to(law.dtype)))  # an unused draw does not fork
        rows = torch.arange(first, first + nodes.shape[1], device=nodes.device).expand_as(nodes)
        growth.add(tokens, nodes, self._draw, q_rows=rows)


def _nodes(draft: TokenTree, first: int, count: int) -> Tensor:
    """Returns `count` consecutive node indices from `first` on, for every row: [B, count]."""
    return torch.arange(first, first + count, device=draft.tokens.device).expand(len(draft.tokens), -1)
