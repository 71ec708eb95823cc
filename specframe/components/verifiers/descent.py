"""The top-down walk shared by the rules that judge several siblings jointly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from specframe.components.verifiers.match import Match
from specframe.components.verifiers.record import Record
from specframe.components.verifiers.recursive import SiblingSlots, residual
from specframe.kernel.sampling import RandomSource
from specframe.kernel.types import Draw, TokenTree, Verdict
from specframe.sampling.lazy import AllLaws

SURE = 0.999
"""The mass of one token above which siblings without replacement are judged one by one.

Little more than rounding errors is left for the other tokens, so that judging a pair jointly gains almost nothing.
"""


@dataclass(frozen=True)
class Run:
    """Consecutive siblings drawn from one law, or a single sibling of any draw; one run per batch row."""

    tokens: Tensor  # [B, N], of all nodes
    members: Tensor  # [B, N] bool
    unreplaced: Tensor  # [B, 1] bool, whether they were drawn without replacement; else independently


Judge = Callable[[Tensor, Tensor, Run], tuple[Tensor, Tensor]]
"""A rule for one run of siblings: (left [B, V], q [B, V], run) -> chance, cover.

`left` is the remaining target law, q the law of the run's first sibling. `chance` [B, N] is the acceptance probability
of each sibling if the earlier ones in the run were rejected; `cover` [B, V] is subtracted from `left` if all are.
"""


def descend(
    tree: TokenTree,
    p: Tensor,
    random: RandomSource,
    judge: Judge,
    longest: int,
    together: frozenset[Draw] = frozenset({Draw.IID}),
) -> Verdict:
    """The path that `judge` accepts, in runs of at most `longest` siblings, and a bonus from the remaining law.

    Consecutive siblings form a run if their draw is in `together` and they come from the same row of q; any other
    sibling is a run by itself, with its recorded law. In a tree without q all nodes are `top`, and Match verifies it.
    The output follows the target's law if in each run the accepted mass per token and the rejected mass times
    norm([left - cover]+) add up to `left`.
    """
    if tree.q is None or tree.q_row is None:
        return Match().verify(tree, AllLaws(p), random)
    batch, count, vocab = p.shape
    laws = p.reshape(batch * count, vocab)
    first = torch.arange(0, batch * count, count, device=p.device)  # [B], where each row's laws begin
    index = torch.arange(count, device=p.device)
    slots = SiblingSlots(tree, Record(tree, vocab, p.dtype))
    parent = tree.parent.where(tree.valid, -1)
    source = -1 - index.expand_as(parent)  # [B, N], equal in a run
    for draw in together:
        source = torch.where(tree.draw == draw, tree.q_row * len(Draw) + draw, source)
    unreplaced = tree.draw == Draw.WITHOUT_REPLACEMENT
    tokens = tree.tokens.where(tree.valid, 0)
    node = tried = length = torch.zeros_like(first)  # [B]
    left = cover = laws.index_select(0, first)  # [B, V]
    run = torch.zeros_like(tree.valid)  # [B, N]
    chance = p.new_zeros(batch, count)
    path = first.new_full((batch, tree.levels + 1), -1)  # the last column takes what is not accepted
    for _ in range(count - 1):
        slot, earlier = slots.after(node, tried)
        trying = slot > 0
        if not trying.any():
            break
        column = slot[:, None]
        begins = trying & ~run.gather(1, column)[:, 0]
        if begins.any():
            _, q = slots.law(slot, earlier)
            later = (parent == node[:, None]) & (index >= column)  # [B, N]
            alike = (source == source.gather(1, column)) & (q.gather(1, tokens) > 0)
            found = later & alike & ~(later & ~alike).cummax(1).values
            without = unreplaced.gather(1, column)  # [B, 1]
            alone = without & (q.amax(1, keepdim=True) > SURE)
            found &= found.cumsum(1) <= torch.where(alone, 1, longest)
            run = torch.where(begins[:, None], found, run)
            judged = judge(left, q, Run(tokens, found, without))
            chance = torch.where(begins[:, None], judged[0], chance)
            cover = torch.where(begins[:, None], judged[1], cover)
        accepted = random.bernoulli(chance.gather(1, column)[:, 0] * trying)
        refused = trying & ~accepted & ~(run & (index > column)).any(1)
        left = torch.where(refused[:, None], residual(left, cover), left)
        left = torch.where(accepted[:, None], laws.index_select(0, first + slot), left)
        path.scatter_(1, length.where(accepted, tree.levels)[:, None], column)
        length = length + accepted
        node, tried = slot.where(accepted, node), slot.where(trying, tried)
    path = path[:, :-1].where(torch.arange(tree.levels, device=p.device) < length[:, None], -1)
    return Verdict(path=path, length=length, bonus=random.categorical(left))
