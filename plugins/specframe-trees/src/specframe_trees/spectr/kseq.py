"""K-SEQ: independent siblings, all held against one common, diminished acceptance test."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe import InputError
from specframe.plugin import Draw, Laws, Needs, RandomSource, Run, TokenTree, Verdict, descend


class KSeq:
    """K-SEQ: accepts independent siblings with at least (1 - (1 - 1/k)^k), for two 3/4, of the best possible rate.

    k siblings drawn from q are tried in turn, each with min(1, P(x) / (rho q(x))). If all are refused, P - min(q, P /
    rho) (1 - (1 - beta)^k) / beta is left, beta = sum min(P / rho, q). rho is the smallest number in [1, k] that leaves
    nothing negative, found by bisection from above, since any larger one is exact as well. `top` siblings are tried one
    by one as Recursive does. Siblings without replacement are refused: their joint cover has this form for independent
    siblings only.

    Needs exact laws, and the number of siblings settled before the first is drawn.

    Options:
        steps: halvings of the interval that rho lies in; each is a sweep over the vocabulary

    Source: SpecTr (Sun et al., 2023, algorithm 2 and theorem 2).
    """

    lossless = True
    needs = Needs(frozenset({Draw.TOP, Draw.IID}), exact=True, fixed_sibling_count=True)

    def __init__(self, *, steps: int = 20) -> None:
        if steps < 0:
            raise InputError(f"k-seq needs 0 or more steps, got {steps}")
        self.steps = steps

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The accepted path and the bonus, given the target's law after every node, p [B, N, V]."""
        p = laws.all
        return descend(tree, p, random, self.judge, longest=tree.tokens.shape[1])

    def judge(self, left: Tensor, q: Tensor, run: Run) -> tuple[Tensor, Tensor]:
        """Chances and cover of a run, as `descend` asks for them."""
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
    """The probability that at least one of `count` independent events of this chance happens."""
    return -torch.expm1(count * torch.log1p(-chance.clamp(0, 1)))
