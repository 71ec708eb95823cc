"""The optimal acceptance rate over all verification rules, an upper bound for each verifier's rate."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specframe.kernel.errors import InputError
from specframe.kernel.types import Draw

STEP, LOWEST, HIGHEST = 0.35, -28.0, 30.0
"""Step and widest range of the trapezoid rule over the logarithm of time. The error is below 1e-11."""


def optimal_acceptance(p: Tensor, q: Tensor, draw: Draw, siblings: int) -> Tensor:
    """The largest probability with which the next token can be one of the siblings: p, q [..., V] -> [...] float64.

    The siblings are drawn from q by `draw`: independently, without replacement, or as its most
    probable tokens. By max-flow and min-cut it is 1 + min over sets H of tokens of p(H) - Q(H), where
    Q(H) is the probability that all siblings are in H. Only the sets of tokens with the smallest p / q can
    attain the minimum, so a sort and V values of Q are enough. If q has fewer tokens than there are
    siblings without replacement, every token of q is a sibling.

    The value bounds every verifier on a tree of one level; for deeper trees it holds node by node.
    Takes O(V log V) per row; for k > 2 siblings without replacement about 100 k passes over the vocabulary
    with logarithms. Raises InputError for fewer than one sibling, or laws of different shapes.

    Sources: SpecTr (Sun et al., 2023) for the transport problem; Hu et al. (2025), Towards optimal
    multi-draft speculative decoding, for its dual over prefixes.
    """
    p, q = _checked(p, q, siblings)
    if draw is Draw.TOP:
        return p.gather(-1, q.topk(min(siblings, q.shape[-1])).indices).sum(-1)
    order = torch.where(q > 0, p / q, torch.inf).argsort(-1)
    low, drawn = p.gather(-1, order), q.gather(-1, order)
    inside = drawn.cumsum(-1).clamp(max=1)
    if draw is Draw.IID or siblings == 1:
        within = inside**siblings
        return 1 + (low.cumsum(-1) - within).amin(-1).clamp(max=0)
    outside = (drawn.flip(-1).cumsum(-1).flip(-1) - drawn).clamp(min=0)
    within = _pair_within(drawn, inside) if siblings == 2 else _all_within(drawn, outside, siblings)
    within = within.where(outside > 0, 1)  # all tokens that q has are inside
    best = 1 + (low.cumsum(-1) - within).amin(-1).clamp(max=0)
    return torch.where((q > 0).sum(-1) > siblings, best, (p * (q > 0)).sum(-1))


def greedy_acceptance(p: Tensor, q: Tensor, siblings: int) -> Tensor:
    """The optimal acceptance of one draw next to the siblings - 1 most probable tokens of q: [..., V] -> [...] float64.

    The draw is from q without those tokens. The value is p(top) + sum min(p, q') over the others, where q' is the
    law of the draw; Recursive attains it if the draw comes first.

    Source: Hu et al. (2025), Towards optimal multi-draft speculative decoding; SpecHub (Sun et al.,
    2024) for two siblings.
    """
    p, q = _checked(p, q, siblings)
    top = q.topk(min(siblings - 1, q.shape[-1])).indices
    rest = q.scatter(-1, top, 0)
    rest = rest / rest.sum(-1, keepdim=True).clamp(min=torch.finfo(rest.dtype).tiny)
    others = torch.minimum(p, rest).scatter(-1, top, 0)
    return p.gather(-1, top).sum(-1) + others.sum(-1)


def _checked(p: Tensor, q: Tensor, siblings: int) -> tuple[Tensor, Tensor]:
    if siblings < 1:
        raise InputError(f"an acceptance rate takes at least 1 sibling, got {siblings}")
    if p.shape != q.shape:
        raise InputError(
            f"p and q must be distributions over one vocabulary, got shapes {tuple(p.shape)} and {tuple(q.shape)}"
        )
    return p.double(), q.double()


def _pair_within(q: Tensor, inside: Tensor) -> Tensor:
    """The probability that two draws without replacement are both among the first n tokens, for all n."""
    odds = q / (1 - q).clamp(min=torch.finfo(q.dtype).tiny)
    return odds.cumsum(-1) * inside - (odds * q).cumsum(-1)


def _all_within(q: Tensor, outside: Tensor, siblings: int) -> Tensor:
    """The probability that all `siblings` draws without replacement are among the first n tokens, for all n.

    Draws without replacement are the first arrivals when token i has an exponential clock of rate q_i. With
    c = q(outside), k tokens inside arrive before the first one outside with probability
    1 - c * integral over t of e^-t * sum over j < k of e_j(expm1(q_i t)), e_j the elementary symmetric
    polynomials of the tokens inside. All terms are positive, so their logarithms stay in range.
    """
    slowest = float(1 - q.topk(min(siblings - 1, q.shape[-1])).values.sum(-1).max())  # no term decays slower than this
    latest = min(HIGHEST, math.log(40 / max(slowest, 1e-12)))
    total = torch.zeros_like(q)
    for step in range(math.ceil((latest - LOWEST) / STEP) + 1):
        time = math.exp(LOWEST + step * STEP)
        rate = q * time
        ring = rate + torch.log(-torch.expm1(-rate))  # log of expm1(rate)
        chosen = torch.zeros_like(q)  # log e_0
        missing = chosen - time
        for j in range(1, siblings):
            before = torch.nn.functional.pad(chosen[..., :-1], (1, 0), value=0 if j == 1 else -torch.inf)
            chosen = (ring + before).logcumsumexp(-1)
            missing = torch.logaddexp(missing, chosen - time)
        total += missing.exp() * (time * STEP)
    return (1 - outside * total).clamp(0, 1)
