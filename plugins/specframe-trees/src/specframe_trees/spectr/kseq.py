"""K-SEQ: independent siblings, all tested against one common, scaled-down acceptance probability."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe import InputError
from specframe.plugin import Draw, Laws, Needs, RandomSource, Run, TokenTree, Verdict, descend


class KSeq:
    """K-SEQ: accepts independent siblings with at least 1 - (1 - 1/k)^k of the optimal rate, 3/4 for two siblings.

    k siblings drawn from q are tried in turn, each accepted with min(1, P(x) / (rho q(x))). If all are rejected, the
    remainder is P - min(q, P / rho) (1 - (1 - beta)^k) / beta with beta = sum min(P / rho, q). rho is the smallest
    number in [1, k] that leaves nothing negative, found by bisection from above, because any larger value is exact,
    too. `top` siblings are tried one by one as in Recursive. Siblings drawn without replacement are refused, because
    their joint cover has this form only for independent siblings.

    Needs exact laws, and a number of siblings that is fixed before the first is drawn.

    Options:
        steps: bisection steps for rho; each is a pass over the vocabulary

    Source: SpecTr (Sun et al., 2023, algorithm 2 and theorem 2).
    """

    lossless = True
    needs = Needs(frozenset({Draw.TOP, Draw.IID}), exact=True, fixed_sibling_count=True)

    def __init__(self, *, steps: int = 20) -> None:
        if steps < 0:
            raise InputError(f"k-seq needs 0 or more steps, got {steps}")
        self.steps = steps

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """Returns the accepted path and the bonus, given the target's law after every node, p [B, N, V]."""
        p = laws.all
        return descend(tree, p, random, self.judge, longest=tree.tokens.shape[1])

    def judge(self, left: Tensor, q: Tensor, run: Run) -> tuple[Tensor, Tensor]:
        """Returns the acceptance probabilities and the cover of a run, for `descend`."""
        count = run.members.sum(1, keepdim=True).clamp(min=1).to(q.dtype)  # [B, 1]
        low, rho = torch.ones_like(count), count
        for _ in range(self.steps):
            middle = (low + rho) / 2
            shared = torch.minimum(left, middle * q).sum(1, keepdim=True)
            valid = some_of(shared / middle, count) <= shared
            low, rho = torch.where(valid, low, middle), torch.where(valid, middle, rho)
        common = torch.minimum(left / rho, q)  # [B, V]
        beta = common.sum(1, keepdim=True)
        times = torch.where(beta > 0, some_of(beta, count) / beta, count)
        mass = q.gather(1, run.tokens)
        chance = torch.where(run.members & (mass > 0), left.gather(1, run.tokens) / (rho * mass), 0).clamp(max=1)
        return chance, common * times


def some_of(chance: Tensor, count: Tensor) -> Tensor:
    """Returns the probability that at least one of `count` independent events of this probability occurs."""
    return -torch.expm1(count * torch.log1p(-chance.clamp(0, 1)))
