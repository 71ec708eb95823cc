"""Scores and verdicts of a session's drafts: greedy where that is possible, by visited nodes or by all laws."""

from __future__ import annotations

from torch import Tensor

from specframe.kernel.composition import greedy_of, visiting_of, walked_of
from specframe.kernel.interfaces import GreedyTarget, Target, Verifier
from specframe.kernel.sampling import Streams
from specframe.kernel.types import GreedyScores, Scores, TokenTree, Verdict
from specframe.sampling.laws import RowSampling, Sampling
from specframe.sampling.lazy import NONE, Visits, chosen, reached_argmax

Judged = tuple[Verdict, Tensor | None]
"""A verdict, and a mask of the nodes [B, N] after which no token has mass; None: there are none."""


class Verification:
    """Scores of a target and verdicts of a verifier, each in the form that takes the least time.

    Greedy decoding asks a `GreedyTarget` for the likeliest tokens alone. Where another part asks for the logits of such
    scores, those of the next cycles are made at once, until `renew`.
    """

    def __init__(self, target: Target, verifier: Verifier) -> None:
        self._target, self._verifier = target, verifier
        self._choose = target.choose if isinstance(target, GreedyTarget) else target.score
        self._greedy, self._walked, self._visiting = greedy_of(verifier), walked_of(verifier), visiting_of(verifier)
        self._by_position = verifier.needs.by_position
        self.renew()

    def renew(self) -> None:
        """Forgets what other parts have asked for: rows have joined."""
        self._last: GreedyScores | None = None
        self._asked = False

    def score(self, draft: TokenTree, sampling: Sampling | RowSampling) -> Scores:
        """The scores of a draft's nodes."""
        self._asked = self._asked or (self._last is not None and self._last.asked)
        plain = sampling.greedy and not sampling.processors and self._greedy is not None
        if self._asked or not plain:
            return self._target.score(draft)
        scores = self._choose(draft)
        self._last = scores if isinstance(scores, GreedyScores) else None
        return scores

    def verify(self, draft: TokenTree, scores: Scores, sampling: Sampling | RowSampling, random: Streams) -> Judged:
        """The verdict on a draft, and the nodes after which no token has mass."""
        if sampling.greedy and self._greedy is not None:
            if isinstance(scores, GreedyScores) and not sampling.processors:
                if scores.path is not None and self._walked is not None:
                    return self._walked.take(draft, scores.path), None
                tokens, gaps = chosen(scores.best)
            elif sampling.processors and draft.levels and self._verifier.lossless:
                tokens, gaps = reached_argmax(sampling, scores.logits, draft)
            else:
                tokens, gaps = sampling.argmax_and_gaps(scores.logits, draft)
            return self._greedy.follow(draft, tokens, gaps), gaps
        source = random.position if self._by_position else random.verify
        if self._visiting is not None:
            # At an admission the features are the prompt's.
            laws = Visits(sampling, scores.logits, draft, scores.features if draft.levels else NONE)
            return self._visiting.verify_on_demand(draft, laws, source), laws.gaps
        law, gaps = sampling.law_and_gaps(scores.logits, draft)
        return self._verifier.verify(draft, law, source), gaps
