"""Recursive rejection sampling: judges siblings in turn, each against the remaining target law."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.verifiers.match import Match
from specframe.components.verifiers.record import Record
from specframe.kernel.capabilities import Needs
from specframe.kernel.sampling import Laws, RandomSource
from specframe.kernel.types import Draw, TokenTree, Verdict


class Recursive:
    """Recursive rejection sampling: accepts more than Match if nodes were sampled and their laws are recorded.

    Slot x with recorded law Q is accepted with probability min(1, P(x) / Q(x)); on rejection P becomes norm([P - Q]+)
    and the next sibling is tried; the bonus is drawn from the remaining P at the last node. Q is one-hot for `top`, q
    for `iid`, and for `without_replacement` q without the earlier siblings that were drawn that way from the same row
    of q, renormalised. The rule is exact if the recorded law is the law of the token given its path, its earlier
    siblings and the existence of the slot. A tree without q has only `top` nodes and is verified by Match, which gives
    the same path and bonus in fewer steps.

    Sources: Leviathan et al. (2023) and Chen et al. (2023) for one slot, SpecInfer (Miao et al., 2024,
    algorithm 2) for independent siblings, recursive speculative decoding (Jeon et al., 2024, section 3)
    for siblings without replacement.
    """

    lossless = True
    needs = Needs(exact=True)

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """The accepted path and the bonus, given the target's law after every node, p [B, N, V]."""
        p = laws.all
        if tree.q is None or tree.q_row is None:
            return Match().verify(tree, laws, random)
        return walk(tree, p, SiblingSlots(tree, Record(tree, p.shape[-1], p.dtype)), random)


def walk(tree: TokenTree, p: Tensor, slots: SiblingSlots, random: RandomSource, lenience: float = 1.0) -> Verdict:
    """The path accepted from the root down, and the bonus, given the target's law after every node, p [B, N, V].

    A slot's recorded probability is multiplied by `lenience` before the comparison; values below 1 make the rule lossy.
    """
    batch, count, vocab = p.shape
    laws = p.reshape(batch * count, vocab)
    first = torch.arange(0, batch * count, count, device=p.device)  # [B], where each row's laws begin
    node = tried = length = torch.zeros_like(first)  # [B]
    path = first.new_full((batch, tree.levels + 1), -1)  # the last column takes what is not accepted
    left = laws.index_select(0, first)  # [B, V], the remaining law at `node`
    # Each row has its own node and slot, so its coin flips do not depend on how many other rows need.
    for _ in range(count - 1):
        slot, earlier = slots.after(node, tried)
        trying = slot > 0
        if not trying.any():
            break
        token, q = slots.law(slot, earlier)  # [B, 1], [B, V]
        ratio = (left.gather(1, token) / (lenience * q.gather(1, token)))[:, 0].clamp(max=1)
        accepted = random.bernoulli(ratio * trying)
        refused = trying & ~accepted
        left = torch.where(refused[:, None], residual(left, q), left)
        left = torch.where(accepted[:, None], laws.index_select(0, first + slot), left)
        path.scatter_(1, length.where(accepted, tree.levels)[:, None], slot[:, None])
        length = length + accepted
        node, tried = slot.where(accepted, node), slot.where(trying, tried)
    levels = torch.arange(tree.levels, device=p.device)
    path = path[:, :-1].where(levels < length[:, None], -1)
    return Verdict(path=path, length=length, bonus=random.categorical(left))


class SiblingSlots:
    """Child slots of a batch of trees with their recorded laws, read one slot per row at a time."""

    def __init__(self, tree: TokenTree, record: Record) -> None:
        """The slots of a tree, drawn from the laws of its record."""
        unreplaced = tree.draw == Draw.WITHOUT_REPLACEMENT
        self._index = torch.arange(tree.tokens.shape[1], device=tree.tokens.device)
        self._parent = tree.parent.where(tree.valid, -1)  # [B, N]
        self._tokens = tree.tokens.where(tree.valid, 0)
        self._given = tree.draw == Draw.TOP
        self._record, self._row = record, record.row
        self._taken_from = self._row.where(unreplaced, -1)
        self._without_taken = self._row.where(unreplaced, -2)

    def after(self, node: Tensor, tried: Tensor) -> tuple[Tensor, Tensor]:
        """The first child of `node` after `tried`, 0 for none, and its earlier siblings: [B], [B, N] bool."""
        children = self._parent == node[:, None]
        slot = (children & (self._index > tried[:, None])).byte().argmax(1)
        return slot, children & (self._index < slot[:, None])

    def law(self, slot: Tensor, earlier: Tensor) -> tuple[Tensor, Tensor]:
        """The token of each slot and the law it was drawn from: [B, 1], [B, V]."""
        slot = slot[:, None]
        token = self._tokens.gather(1, slot)
        q = self._record.laws(self._row.gather(1, slot)[:, 0])  # [B, V]
        gone = earlier & (self._taken_from == self._without_taken.gather(1, slot))  # [B, N]
        q = q.scatter_reduce_(1, self._tokens, (~gone).to(q.dtype), "prod")  # 0 at the tokens gone
        q = q / q.sum(-1, keepdim=True).clamp(min=torch.finfo(q.dtype).tiny)
        mass = q.gather(1, token)
        given = self._given.gather(1, slot) | (mass <= 0)  # 0 cannot be: then one-hot is exact
        return token, q.masked_fill(given, 0).scatter_(1, token, mass.masked_fill(given, 1))


def residual(law: Tensor, q: Tensor) -> Tensor:
    """norm([law - q]+), [B, V]; the law itself where rounding leaves no mass."""
    excess = (law - q).clamp(min=0)
    mass = excess.sum(-1, keepdim=True)
    return torch.where(mass > torch.finfo(law.dtype).tiny, excess / mass, law)
