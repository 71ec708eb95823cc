"""Judge decoding without training: drafted tokens are accepted where drafter and target nearly agree."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch

from specframe import InputError
from specframe.plugin import Draw, Needs
from specframe_judge.walk import walk

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Laws, RandomSource, TokenTree, Verdict


class BoundedDivergence:
    """Accepts the target's own token, and any other if KL(q || p) is below a limit. Lossy.

    q is the drafter's law from which the token was drawn and p the target's law at this node, both after temperature
    and truncation: a token that p excludes is never accepted. Drafts of the most probable tokens have no q and are
    refused; use `surprise` for those.

    Source: Revisiting Judge Decoding, 2026, arXiv 2601.04766.

    Args:
        limit: nats; with 0 the text is that of `match`, token for token.
    """

    lossless = False
    needs = Needs(frozenset({Draw.IID, Draw.WITHOUT_REPLACEMENT}), exact=True, by_position=True)

    def __init__(self, *, limit: float = 0.5) -> None:
        if not limit >= 0:
            raise InputError(f"divergence: limit must be at least 0 nats, not {limit:g}")
        self.limit = limit

    def strict(self) -> BoundedDivergence:
        """Returns a copy with limit 0, which equals `match`."""
        return BoundedDivergence(limit=0.0)

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """Returns the accepted path and the bonus; computes laws only along the way."""

        whole = cache(tree.whole)  # computed once, for the first node's vocabulary

        def agreed(node: Tensor) -> Tensor:
            p = laws.after(node)  # [B, V]
            known = whole(p.shape[-1])
            if known.q is None or known.q_row is None:
                return torch.zeros_like(tree.valid)
            first = ((tree.parent == node[:, None]) & tree.valid).byte().argmax(1)  # [B]
            rows = torch.arange(len(node), device=node.device)
            q = known.q[rows, known.q_row[rows, first].clamp(min=0)].to(p.dtype)
            gap = (q * (q / p).log()).where(q > 0, 0).sum(-1)  # [B], infinite if p excludes a token that q may draw
            return (gap < self.limit)[:, None].expand_as(tree.valid) & (p.gather(1, tree.tokens.clamp(min=0)) > 0)

        return walk(tree, laws, random, agreed)
