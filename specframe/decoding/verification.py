"""Scores and verdicts of a session's drafts: by the argmax at temperature 0, otherwise by the verifier."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specframe.decoding.requests import Entry
from specframe.kernel.costs import Costs, DraftRecord
from specframe.kernel.interfaces import Target, Verifier, text_of
from specframe.kernel.sampling import Streams
from specframe.kernel.types import GreedyScores, Scores, TokenTree, Verdict
from specframe.sampling.greedy import chosen, follow_argmax, reached_argmax
from specframe.sampling.laws import RowSampling, Sampling
from specframe.sampling.lazy import NONE, Visits

Judged = tuple[Verdict, Tensor | None]
"""A verdict, and a mask of the nodes [B, N] after which no token has mass; None: there are none."""


class Verification:
    """Scores of a target and verdicts of a verifier, each in the form that takes the least time.

    Greedy decoding asks a target for argmax tokens alone, by `choose`. Once another part has read the logits of such
    scores, the next cycles compute logits at once, until `renew`.

    A drafter's forward pass proposes `block` levels.
    """

    def __init__(self, target: Target, verifier: Verifier, block: int = 1) -> None:
        self._target, self._verifier, self._block = target, verifier, block
        self._costs: Costs | None = None  # of the next draft
        self._rows: Sequence[Entry] = ()
        self._choose = text_of(target).choose
        self._by_position = verifier.needs.by_position
        self.renew()

    def renew(self) -> None:
        """Forgets whether other parts read logits, since rows have joined."""
        self._last: GreedyScores | None = None
        self._asked = False

    def score(self, draft: TokenTree, sampling: Sampling | RowSampling) -> Scores | GreedyScores:
        """The scores of a draft's nodes."""
        if not self.chooses(sampling):
            return self._target.score(draft)
        scores = self._choose(draft)
        self._last = scores if isinstance(scores, GreedyScores) else None
        return scores

    def chooses(self, sampling: Sampling | RowSampling) -> bool:
        """Returns whether the target is asked for the next draft's argmax tokens alone."""
        self._asked = self._asked or (self._last is not None and self._last.has_logits)
        return not self._asked and sampling.greedy and not sampling.processors and self._verifier.lossless

    def costs(
        self, costs: Costs, rows: Sequence[Entry], record: DraftRecord, sampling: Sampling | RowSampling
    ) -> Costs:
        """Returns the costs of the next draft of these rows, and keeps them to record its outcome."""
        self._rows, lengths = rows, [entry.length for entry in rows]
        unread, left = sum(lengths) - sum(entry.read for entry in rows), sum(entry.left for entry in rows)
        self._costs = costs.together(lengths, record, self.skips_invalid(sampling), unread, left)
        return self._costs

    def skips_invalid(self, sampling: Sampling | RowSampling) -> bool:
        """Returns whether invalid nodes of the next draft take no time."""
        computing = text_of(self._target).computing
        return getattr(computing, "skips_invalid", False) and self.chooses(sampling)

    def verify(
        self, draft: TokenTree, scores: Scores | GreedyScores, sampling: Sampling | RowSampling, random: Streams
    ) -> Judged:
        """The verdict on a draft, and the nodes after which no token has mass."""
        judged = self._judged(draft, scores, sampling, random)
        if self._costs is not None and self._costs.record is not None and draft.levels:
            rows, size = draft.shape
            nodes = int(draft.valid.sum()) if self._costs.ragged else rows * size
            counts = sum(judged[0].length.tolist()), nodes - rows, -(-draft.levels // self._block)
            self._costs.record.add(rows, *counts)
        for entry in self._rows if draft.levels else ():
            entry.read = entry.length
        return judged

    def _judged(
        self, draft: TokenTree, scores: Scores | GreedyScores, sampling: Sampling | RowSampling, random: Streams
    ) -> Judged:
        if sampling.greedy and self._verifier.lossless:  # then every rule emits the argmax tokens
            if isinstance(scores, GreedyScores) and not sampling.processors:
                if scores.verdict is not None:
                    return scores.verdict, None
                tokens, gaps = chosen(scores.best)
            elif sampling.processors and draft.levels:
                tokens, gaps = reached_argmax(sampling, scores.logits, draft)
            else:
                tokens, gaps = sampling.argmax_and_gaps(scores.logits, draft)
            return follow_argmax(draft, tokens, gaps), gaps
        # At an admission the features are the prompt's.
        laws = Visits(sampling, scores.logits, draft, scores.features if draft.levels else NONE)
        source = random.position if self._by_position else random.verify
        return self._verifier.verify(draft, laws, source), laws.gaps


def malformed(tree: TokenTree, verdict: Verdict, vocab: int | None = None) -> str | None:
    """Describes what is wrong with a verdict's form; None for a path of valid nodes and one bonus token."""
    batch, count = tree.tokens.shape
    if tuple(verdict.path.shape) != (batch, tree.levels):
        return f"the path has shape {list(verdict.path.shape)} for {batch} rows of {tree.levels} levels"
    for name, column in (("length", verdict.length), ("bonus", verdict.bonus)):
        if tuple(column.shape) != (batch,) or column.is_floating_point():
            return f"`{name}` has shape {list(column.shape)} and {column.dtype} in place of [{batch}] and whole numbers"
    columns = (verdict.path, verdict.length, verdict.bonus, tree.parent, tree.valid)
    for row, (path, length, bonus, parents, valid) in enumerate(
        zip(*(column.expand(batch, *column.shape[1:]).tolist() for column in columns), strict=True)
    ):
        nodes = [node for node in path if node >= 0]
        if length != len(nodes) or path[:length] != nodes:
            return f"row {row}: the length is {length}, but the path is {path}: -1 after the last accepted node"
        if any(not 0 < node < count or not valid[node] for node in nodes):
            return f"row {row}: the path {path} has a node that is not valid"
        if [parents[node] for node in nodes] != [0, *nodes][: len(nodes)]:
            return f"row {row}: {nodes} is not a path: each node must be a child of the one before it"
        if vocab is not None and not 0 <= bonus < vocab:
            return f"row {row}: the bonus {bonus} is no token of {vocab}"
    return None
