"""Two independent siblings at a time, accepted almost as often as any rule could."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe.components.verifiers.descent import descend
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import RandomSource
from specframe.kernel.types import Draw, TokenTree, Verdict

STEEP, STRIDE = 4, 1.5
"""Where the strengths start from, a power of the ratio that is wanted, and how far a round moves them."""


class Transport:
    """Multi-draft transport: of two siblings drawn from q one is chosen, then accepted as a single draft would be.

    The choice makes the chosen token's law F(x) q(x), known for every x. Accepting it with min(1, P(x) /
    (F q)(x)) and leaving norm([P - F q]+) is exact whatever the choice; the closer F q comes to P, the more
    is accepted. Tokens are put into classes by P / q, and two classes meet like players of a tournament:
    one wins with probability w / (w + w'), so that F is a constant in a class. The strengths w are
    what makes the classes win as often as the best transport wants, whose wins have a closed form. With
    the defaults it accepts within 1 % of `optimal_acceptance` for two siblings, at any vocabulary.

    More than two siblings are judged two by two, against what is left; a single one, and `top`, as in
    Recursive. Siblings without replacement are refused: a pair needs both of its laws settled before the
    first is drawn, and policies that draw without replacement may let the first token decide whether there
    is a second. Needs exact laws, and a number of siblings that does not lean on which tokens came out.

    Costs some six sweeps over the vocabulary and `rounds` times classes^2 operations per pair.

    Options:
        classes: how finely P / q is told apart, at most; the acceptance lost is at most 2 / classes
        rounds: how long the strengths are adjusted

    Sources: SpecTr (Sun et al., 2023) for the transport problem; Khisti et al. (2025) for choosing one and
    accepting it; the optimum over prefixes as in Hu et al. (2025, Towards optimal multi-draft speculative
    decoding). The tournament is Bradley and Terry's (1952) model, fitted by Zermelo's iteration.
    """

    lossless = True
    accepts = frozenset({Draw.TOP, Draw.IID})
    needs_exact = True

    def __init__(self, *, classes: int = 64, rounds: int = 20) -> None:
        if classes < 1 or rounds < 0:
            raise InputError(f"transport needs 1 or more classes and 0 or more rounds, got {classes} and {rounds}")
        self.classes = classes
        self.rounds = rounds

    def verify(self, tree: TokenTree, p: Tensor, random: RandomSource) -> Verdict:
        """The accepted path and the bonus, given the target's law after every node, p [B, N, V]."""
        return descend(tree, p, random, self.judge, longest=2)

    def judge(self, left: Tensor, q: Tensor, tokens: Tensor, run: Tensor) -> tuple[Tensor, Tensor]:
        """Chances and cover of a run, as `descend` asks for them."""
        pair = run.sum(1, keepdim=True) == 2  # [B, 1]
        kind, wins, strength, rank = self.tournament(left, q)
        cover = torch.where(pair, (q * wins.gather(1, kind)).to(q.dtype), q)
        slots = run.long().cumsum(1).where(run, 0)  # [B, N], 1 and 2 for the siblings
        both = torch.stack([(slots == 1).byte().argmax(1), (slots == 2).byte().argmax(1)], 1)  # [B, 2]
        classes = kind.gather(1, tokens.gather(1, both))
        strong, high = strength.gather(1, classes), rank.gather(1, classes)
        even = strong / strong.sum(1, keepdim=True)
        chosen = torch.where(high == high.flip(1), even, (high > high.flip(1)).to(even.dtype))  # [B, 2]
        chosen = torch.where(pair, chosen, torch.tensor([1.0, 0.0], dtype=chosen.dtype, device=chosen.device))
        mass = cover.gather(1, tokens)
        accept = (left.gather(1, tokens) / mass).where(run & (mass > 0), 0).clamp(max=1)
        share = chosen.to(accept.dtype) * accept.gather(1, both)  # [B, 2], of the two being chosen and accepted
        second = (share[:, 1] / (1 - share[:, 0])).where(share[:, 0] < 1, 0).clamp(0, 1)
        chance = torch.where(slots == 1, share[:, :1], second[:, None].where(slots == 2, 0))
        return chance, cover

    def tournament(self, left: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The classes of tokens [B, V]; their F, strengths and ranks [B, C]: a higher rank always wins."""
        count = min(self.classes, q.shape[1])
        ratio = (left / q).nan_to_num(0, posinf=2)  # [B, V]
        if count < self.classes:
            kind = ratio.argsort(1).argsort(1)  # each token is its own class
        else:  # of equal width up to 2: nothing wins more than twice as often as q has it
            kind = (ratio * (count / 2)).clamp(max=count - 1).long()
        size = left.new_zeros(len(q), count, dtype=torch.float64)
        wanted = size.scatter_add(1, kind, left.double().where(q > 0, 0))  # [B, C]
        size = size.scatter_add(1, kind, q.double())
        size = size / size.sum(1, keepdim=True)
        below, wins, ends = best_wins(size, wanted)
        rank = torch.nn.functional.pad(ends[:, :-1].long().cumsum(1), (1, 0))
        rivals = size[:, None] * (rank[:, :, None] == rank[:, None])  # [B, C, C], the classes of equal rank
        strength = wins**STEEP
        for _ in range(self.rounds + 1):
            got = 2 * strength * (rivals / (strength[:, :, None] + strength[:, None])).sum(2)
            last, strength = strength, (strength * (wins / got).where(size > 0, 1) ** STRIDE).clamp(1e-30, 1e30)
        return kind, 2 * below + got, last, rank


def best_wins(size: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How often classes of `size` should win so that what they share with `wanted` is largest; all [B, C].

    Classes are in order of wanted / size. The lowest ones win a meeting of two among themselves, so up to
    any class the wins are at least size^2, cumulated; and any such wins can be had. Where `wanted` falls short
    of that by less before and after, it is raised by just that much. Gives the size of all classes of
    lower rank, the wins per size against classes of equal rank (0 excluded), and whether a rank ends here.
    """
    reach, want = size.cumsum(1), wanted.cumsum(1)
    short = reach**2 - want  # [B, C]
    before = short.cummax(1).values.clamp(min=0)
    after = short.flip(1).cummax(1).values.flip(1)
    wins = want + torch.minimum(before, after)  # cumulated
    ends = (wins - reach**2 <= 1e-9) | (torch.arange(size.shape[1], device=size.device) == size.shape[1] - 1)
    edge = torch.where(ends, reach, 0).cummax(1).values  # the size of all classes up to the last end
    below = torch.nn.functional.pad(edge[:, :-1], (1, 0))
    each = wins.diff(dim=1, prepend=torch.zeros_like(wins[:, :1]))
    rate = (each / size - 2 * below).where(size > 0, 1).clamp(min=1e-9)
    return below, rate, ends
