"""Verification of two siblings at a time, accepted almost as often as by an optimal rule."""

from __future__ import annotations

import torch
from torch import Tensor

from specframe import InputError
from specframe.plugin import Draw, Laws, Needs, RandomSource, Run, TokenTree, Verdict, descend

SAMPLED = frozenset(Draw) - {Draw.TOP}
STEEP, STRIDE = 4, 1.5
"""Exponent applied to the wanted ratio for the initial strengths, and the step size of a round."""


class Transport:
    """Multi-draft transport: one of two siblings drawn from q is chosen, then accepted like a single draft.

    The choice gives the chosen token the law C(x), known for every x. Accepting it with min(1, P(x) / C(x)) and leaving
    norm([P - C]+) is exact for any choice; the closer C is to P, the more is accepted. Tokens are grouped into classes
    by P / q, and two classes compete as in a tournament: one wins with probability w / (w + w'). The strengths w are
    fitted so that classes win as often as in the optimal transport, whose win rates have a closed form. With the
    defaults, it accepts within 1 % of `optimal_acceptance` for two siblings, independent or without replacement, at any
    vocabulary size.

    More than two siblings are judged in pairs, against the remaining law; a single one, and `top`, as in Recursive.
    Needs exact laws, and a number of siblings that is fixed before the first is drawn: whether there is a second must
    not depend on the first.

    Costs about ten passes over the vocabulary and `rounds` times classes^2 operations per pair.

    Options:
        classes: maximum number of classes of P / q
        rounds: number of rounds in which the strengths are fitted

    Sources: SpecTr (Sun et al., 2023) for the transport problem; Khisti et al. (2025) for choosing one and accepting
    it; the optimum over prefixes as in Hu et al. (2025, Towards optimal multi-draft speculative decoding). The
    tournament is Bradley and Terry's (1952) model, fitted by Zermelo's iteration.
    """

    lossless = True
    needs = Needs(exact=True, fixed_sibling_count=True)

    def __init__(self, *, classes: int = 64, rounds: int = 20) -> None:
        if classes < 1 or rounds < 0:
            raise InputError(f"transport needs 1 or more classes and 0 or more rounds, got {classes} and {rounds}")
        self.classes = classes
        self.rounds = rounds

    def verify(self, tree: TokenTree, laws: Laws, random: RandomSource) -> Verdict:
        """Returns the accepted path and the bonus, given the target's law after every node, p [B, N, V]."""
        p = laws.all
        return descend(tree, p, random, self.judge, longest=2, together=SAMPLED)

    def judge(self, left: Tensor, q: Tensor, run: Run) -> tuple[Tensor, Tensor]:
        """Returns the acceptance probabilities and the cover of a run, for `descend`."""
        pair = run.members.sum(1, keepdim=True) == 2  # [B, 1]
        if not pair.any():  # chains, greedy drafts: single siblings
            return accept_alone(left, q, run), q
        kind, beats, law = self.tournament(left, q, run.unreplaced)
        cover = torch.where(pair, law.to(q.dtype), q)
        slots = run.members.long().cumsum(1).where(run.members, 0)  # [B, N], 1 and 2 for the siblings
        both = torch.stack([(slots == 1).byte().argmax(1), (slots == 2).byte().argmax(1)], 1)  # [B, 2]
        one, two = kind.gather(1, run.tokens.gather(1, both)).split(1, 1)  # [B, 1]
        chosen = beats.flatten(1).gather(1, one * beats.shape[1] + two).where(pair, 1)  # [B, 1], the first
        accept = accept_alone(left, cover, run)
        # [B, 2], probability that each of the two is chosen and accepted
        share = torch.cat([chosen, 1 - chosen], 1).to(accept.dtype) * accept.gather(1, both)
        second = (share[:, 1] / (1 - share[:, 0])).where(share[:, 0] < 1, 0).clamp(0, 1)
        chance = torch.where(slots == 1, share[:, :1], second[:, None].where(slots == 2, 0))
        return chance, cover

    def tournament(self, left: Tensor, q: Tensor, unreplaced: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the tokens' classes [B, V], the classes' win rates [B, C, C], and the chosen token's law [B, V].

        A pair x, y is drawn with q(x) q(y) (o(x) + o(y)), where o = 1 / (1 - q) without replacement, otherwise 1.
        """
        kind = self.sort(left, q)
        count = min(self.classes, q.shape[1])
        first = q.double()
        first = first / first.sum(1, keepdim=True)

        def by_class(values: Tensor) -> Tensor:
            return values.new_zeros(len(q), count).scatter_add(1, kind, values)  # [B, C]

        size = force = by_class(first)
        second, twice, apart = first, torch.zeros_like(first[:, :1]), torch.zeros_like(size)
        if unreplaced.any():
            second = first / (1 - first * unreplaced)  # q o
            twice = first * second * unreplaced  # a token is never paired with itself
            force, apart = by_class(second), by_class(twice)
        meetings = size[:, :, None] * force[:, None] + force[:, :, None] * size[:, None]  # [B, C, C]
        meetings = meetings - 2 * torch.diag_embed(apart)
        within = size.cumsum(1) * force.cumsum(1) - apart.cumsum(1)  # both tokens of a pair are among the first classes
        wins, rank = best_wins(within, by_class(left.double().where(q > 0, 0)))
        higher, equal = rank[:, :, None] > rank[:, None], rank[:, :, None] == rank[:, None]
        rivals = (meetings * equal / size[:, :, None]).where(size[:, :, None] > 0, 0)
        wanted = ((wins - (meetings * higher).sum(2)) / size).where(size > 0, 1).clamp(min=1e-9)  # against the rest
        strength = wanted**STEEP  # [B, C]
        for _ in range(self.rounds):
            got = strength * (rivals / (strength[:, :, None] + strength[:, None])).sum(2)
            strength = (strength * (wanted / got).where(got > 0, 1) ** STRIDE).clamp(1e-30, 1e30)
        even = strength[:, :, None] / (strength[:, :, None] + strength[:, None])
        beats = torch.where(equal, even, higher.to(even.dtype))
        as_first, as_second = (beats * force[:, None]).sum(2), (beats * size[:, None]).sum(2)  # [B, C]
        law = first * as_first.gather(1, kind) + second * as_second.gather(1, kind) - twice
        return kind, beats, law

    def sort(self, left: Tensor, q: Tensor) -> Tensor:
        """Returns the class of each token, in order of left / q: [B, V]."""
        ratio = (left / q).nan_to_num(0, posinf=2)
        if q.shape[1] <= self.classes:
            return ratio.argsort(1).argsort(1)  # each token is a class
        # The most likely tokens are single classes, too, since their wins differ from those of tokens like them. The
        # others form classes of equal width up to 2, since no token can win more than twice as often as q draws it.
        alone = self.classes // 4
        count = self.classes - alone
        ratio = (ratio * (count / 2)).clamp(max=count - 1)
        heavy = q.topk(alone).indices  # [B, A]
        kind = ratio.long().scatter(1, heavy, torch.arange(count, self.classes, device=q.device).expand_as(heavy))
        middle = torch.arange(count, device=q.device).expand(len(q), -1) + 0.5
        return torch.cat([middle, ratio.gather(1, heavy)], 1).argsort(1).argsort(1).gather(1, kind)


def accept_alone(left: Tensor, law: Tensor, run: Run) -> Tensor:
    """Returns the acceptance of each of a run's tokens as a single draft: left and law [B, V] -> [B, N]."""
    mass = law.gather(1, run.tokens)
    return (left.gather(1, run.tokens) / mass).where(run.members & (mass > 0), 0).clamp(max=1)


def best_wins(within: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the win rates of classes that maximise the overlap with `wanted`, and their ranks: [B, C].

    Classes are in order of wanted / size; `within` [B, C] is the probability that both of a pair are in a class or an
    earlier one. One of these then wins, so the cumulated wins up to any class are at least that; and all such wins can
    be reached. Where the cumulated `wanted` is below this bound, it is raised by the smallest sufficient amount. A
    class of higher rank always wins.
    """
    want = wanted.cumsum(1)
    short = within - want  # [B, C]
    before = short.cummax(1).values.clamp(min=0)
    after = short.flip(1).cummax(1).values.flip(1)
    wins = want + torch.minimum(before, after)  # cumulated
    ends = wins[:, :-1] - within[:, :-1] <= 1e-9  # end of a rank
    rank = torch.nn.functional.pad(ends.long().cumsum(1), (1, 0))
    return wins.diff(dim=1, prepend=torch.zeros_like(wins[:, :1])), rank
