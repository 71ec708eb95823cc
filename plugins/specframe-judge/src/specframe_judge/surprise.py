"""Judge decoding without training: a drafted token is accepted if the target finds it likely enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specframe import InputError
from specframe.plugin import Needs
from specframe_judge.walk import walk

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Laws, RandomSource, TokenTree, Verdict


class Surprise:
    """Accepts the target's own token, and any other whose -log p is below a limit. Lossy.

    p is the target's distribution at temperature 1, whatever the recipe's temperature. This is the baseline for trained
    judges. The paper's KL(q || p), the verifier `divergence`, needs the drafter's whole distribution at every node,
    which drafts of the most probable tokens do not record; for a drafter that is certain of its token it equals -log p.

    Source: Revisiting Judge Decoding, 2026, arXiv 2601.04766.

    Args:
        limit: nats; with 0 the text is that of `match`, token for token.
    """

    lossless = False
    needs = Needs(by_position=True)

    def __init__(self, *, limit: float = 1.0) -> None:
        if not limit >= 0:
            raise InputError(f"surprise: limit must be at least 0 nats, not {limit:g}")
        self.limit = limit

    def strict(self) -> Surprise:
        """Returns a copy with limit 0, which equals `match`."""
        return Surprise(limit=0.0)

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """Returns the accepted path and the bonus; computes laws and logits only along the way."""

        def plausible(node: Tensor) -> Tensor:
            logits = laws.logits(node).float()  # [B, V]
            return logits.logsumexp(-1, keepdim=True) - logits.gather(1, tree.tokens.clamp(min=0)) < self.limit

        return walk(tree, laws, random, plausible)
