"""Typical acceptance: accepts tokens that the target finds plausible, whichever token it would have drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

from specframe import InputError
from specframe.plugin import Draw, Laws, Needs, Verdict

if TYPE_CHECKING:
    from specframe.plugin import RandomSource, TokenTree


class Typical:
    """Medusa's acceptance rule (Cai et al. 2024, Section 2.3.1). Lossy: the output does not follow the target's law.

    A node is accepted if its parent is, and its token x has p(x) > min(epsilon, delta exp(-H(p))), where p is the
    target's law after the parent and H its entropy: the flatter the law, the less likely a token may be. The longest
    accepted path is taken, or the most likely of several. Drafts are accepted without random draws, and as published
    the token after the path is the most probable one. At temperature 0 the rule is exact.

    H is computed as in the published code, - sum p log(p + 1e-5).

    Args:
        epsilon: probability from which a token is always accepted.
        delta: factor on exp(-H) in the threshold; none: the square root of epsilon, as published.
        bonus: the token after the path: the most probable one, as published, or a draw from the target's law.
    """

    lossless = False
    needs = Needs(frozenset({Draw.TOP}))

    def __init__(
        self, *, epsilon: float = 0.09, delta: float | None = None, bonus: Literal["best", "draw"] = "best"
    ) -> None:
        for name, value in (("epsilon", epsilon), ("delta", epsilon if delta is None else delta)):
            if not 0 < value < 1:
                raise InputError(f"typical: {name} must lie between 0 and 1, not {value}")
        self.epsilon = epsilon
        self.delta = epsilon**0.5 if delta is None else delta
        self.bonus = bonus

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """Returns the accepted path and the token after it, given the target's law after every node, p [B, N, V]."""
        p = laws.all
        parent = tree.parent.clamp(min=0)  # [B, N]
        entropy = -(p * (p + 1e-5).log()).sum(-1)  # [B, N]
        threshold = (self.delta * (-entropy).exp()).clamp(max=self.epsilon).gather(1, parent)  # [B, N]
        # p of each node's token after its parent, without a copy of p per node
        share = p.flatten(1).gather(1, parent * p.shape[-1] + tree.tokens)  # [B, N]
        fine = tree.valid & (share > threshold)
        fine[:, 0] = True
        seen = tree.ancestors  # [B, N, N]
        reached = (fine[:, None] | ~seen).all(-1)  # [B, N], the whole path is accepted
        depth = tree.depth
        longest = reached & (depth == (depth * reached).amax(1, keepdim=True))
        surprise = -share.log().where(tree.parent >= 0, 0)  # [B, N]; infinite where p is 0, which is never reached
        cost = (surprise.where(reached, 0)[:, None] * seen).sum(-1)  # [B, N], sum over the path
        end = cost.where(longest, torch.inf).argmin(1)  # [B]
        rows = torch.arange(len(end), device=end.device)
        places = (depth - 1).where(seen[rows, end] & (depth > 0), tree.levels)  # [B, N]; the last place is a spare
        path = end.new_full((len(end), tree.levels + 1), -1)
        path = path.scatter(1, places, torch.arange(places.shape[1], device=end.device).expand_as(places))
        last = p[rows, end]  # [B, V]
        return Verdict(
            path=path[:, : tree.levels],
            length=depth[rows, end],
            bonus=last.argmax(-1) if self.bonus == "best" else random.categorical(last),
        )
