"""Distance of a verifier from the optimum: the optimal acceptance of the drafts that it verified."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specframe.components.verifiers.bound import optimal_acceptance
from specframe.decoding.pipeline import Pipeline
from specframe.kernel.interfaces import Observer, Verifier
from specframe.kernel.sampling import Laws, RandomSource
from specframe.kernel.types import Draw, TokenTree, Verdict


class OptimumWatcher:
    """A verifier with unchanged verdicts that records the optimal acceptance at the root."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier
        self.needs = verifier.needs
        self.lossless = False  # so that a session asks for each verdict, at temperature 0, too
        self.found: list[list[float]] = []
        """Optimum of each cycle, by row."""
        if isinstance(verifier, Observer):  # then so is this
            self.open, self.observe, self.keep = verifier.open, verifier.observe, verifier.keep

    def verify(self, draft: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The verifier's own verdict on the draft, p [B, N, V]."""
        p = laws.all
        if draft.levels:  # an admission's root-only tree drafts nothing
            self.found.append(best_at_root(draft.whole(p.shape[-1]), p).tolist())
        return self.verifier.verify(draft, laws, random)


def sum_optimum(pipeline: Pipeline, rows: Sequence[Sequence[int]], seed: int) -> tuple[float, int]:
    """The sum over cycles of the optimal acceptance at the root while decoding the prompts, and their number.

    Decoding gives the output of the same seed without this measurement, but takes longer, so it must not be timed.
    """
    watcher = OptimumWatcher(pipeline.parts.verifier)
    watched = pipeline.with_parts(verifier=watcher)
    requests = watched.requests(rows, seed=seed)
    with watched.open(requests, slots=len(rows)) as session:
        session.run(requests)
    found = [value for cycle in watcher.found for value in cycle]
    return sum(found), len(found)


def best_at_root(draft: TokenTree, p: Tensor) -> Tensor:
    """The largest probability with which any rule could accept a child of the root: p [B, N, V] -> [B] float64.

    For children drawn from one law it is `optimal_acceptance`. `top` children always exist and are accepted with
    their whole probability, and the sampled ones compete for the rest: by min-cut the optimum is p(top) plus
    that of p without the top tokens. If a policy's draws determine the number of siblings, the number is
    treated as fixed.
    """
    children = (draft.parent == 0) & draft.valid  # [B, N]
    return torch.stack([_best(draft, row, children[row].nonzero().squeeze(1), p[row, 0]) for row in range(len(p))])


def _best(draft: TokenTree, row: int, children: Tensor, p: Tensor) -> Tensor:
    """The optimum for the children [k] of one row's root, whose law is p [V]."""
    fixed = draft.draw[row, children] == Draw.TOP
    top = draft.tokens[row, children[fixed]].unique()
    p = p.double()
    drawn, won = children[~fixed], p[top].sum()
    if not len(drawn) or draft.q is None or draft.q_row is None:
        return won
    q = draft.q[row, draft.q_row[row, drawn[0]]]
    draw = Draw(int(draft.draw[row, drawn[0]]))
    return won + optimal_acceptance(p.index_fill(0, top, 0), q, draw, len(drawn))
