"""The walk from the root down that rules share which judge several independent siblings together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Slots, residual
from specframe.kernel.interfaces import RandomSource
from specframe.kernel.types import Draw, TokenTree, Verdict

Judge = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""What a rule says of a run of siblings: (left [B, V], q [B, V], tokens [B, N], run [B, N]) -> chance, cover.

`run` marks siblings drawn independently from q, or a single sibling drawn from q. `chance` [B, N] is the
probability of accepting each, the ones before it in the run refused; `cover` [B, V] is what is taken from
the law that is left when all of them are.
"""


def descend(tree: TokenTree, p: Tensor, random: RandomSource, judge: Judge, longest: int | None = None) -> Verdict:
    """The path that `judge` accepts, from run to run of at most `longest` siblings, and a bonus from the rest.

    Siblings form a run when they stand side by side and were drawn `iid` from the same row of q; any other
    sibling is a run of its own, with its recorded law. A tree without q is all `top` and is left to Match.
    The law is kept if in each run what is accepted, token by token, and norm([left - cover]+) in case of
    refusal make up `left`.
    """
    if tree.q is None or tree.q_row is None:
        return Match().verify(tree, p, random)
    batch, count, vocab = p.shape
    laws = p.reshape(batch * count, vocab)
    first = torch.arange(0, batch * count, count, device=p.device)  # [B], where each row's laws begin
    index = torch.arange(count, device=p.device)
    slots = Slots(tree, tree.q.to(p.dtype), tree.q_row)
    source = torch.where((tree.draw == Draw.IID) & tree.valid, tree.q_row, -1 - index)  # [B, N], equal in a run
    parent = tree.parent.where(tree.valid, -1)
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
        here = slot[:, None]
        begins = trying & ~run.gather(1, here)[:, 0]
        if begins.any():
            _, q = slots.law(slot, earlier)
            later = (parent == node[:, None]) & (index >= here)  # [B, N]
            alike = (source == source.gather(1, here)) & (q.gather(1, tokens) > 0)
            found = later & alike & ~(later & ~alike).cummax(1).values
            if longest is not None:
                found &= found.cumsum(1) <= longest
            run = torch.where(begins[:, None], found, run)
            judged = judge(left, q, tokens, found)
            chance = torch.where(begins[:, None], judged[0], chance)
            cover = torch.where(begins[:, None], judged[1], cover)
        accepted = random.bernoulli(chance.gather(1, here)[:, 0] * trying)
        refused = trying & ~accepted & ~(run & (index > here)).any(1)
        left = torch.where(refused[:, None], residual(left, cover), left)
        left = torch.where(accepted[:, None], laws.index_select(0, first + slot), left)
        path.scatter_(1, length.where(accepted, tree.levels)[:, None], here)
        length = length + accepted
        node, tried = slot.where(accepted, node), slot.where(trying, tried)
    path = path[:, :-1].where(torch.arange(tree.levels, device=p.device) < length[:, None], -1)
    return Verdict(path=path, length=length, bonus=random.categorical(left))
