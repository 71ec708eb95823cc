"""Slow, literal references of the rules that judge several siblings together, in the manner of reference.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specframe.components.verifiers.reference import Coins, Law, Number, Row, match_reference, recorded_law, residual
from specframe.kernel.types import Draw

Judge = Callable[[Law, Law, Sequence[int]], tuple[list[Number], Law]]
"""Of what is left, q and the tokens of a run: the chance of each, and the cover."""


def kseq_reference(row: Row, p: Sequence[Law], coins: Coins, steps: int = 20) -> tuple[list[int], int]:
    """The accepted path of nodes and the bonus token by the rule of `KSeq`."""

    def judge(left: Law, q: Law, tokens: Sequence[int]) -> tuple[list[Number], Law]:
        k = len(tokens)
        low, rho = 1.0, float(k)
        for _ in range(steps):
            middle = (low + rho) / 2
            beta = sum(min(a / middle, b) for a, b in zip(left, q, strict=True))
            low, rho = (low, middle) if 1 - (1 - beta) ** k <= middle * beta else (middle, rho)
        common = [min(a / rho, b) for a, b in zip(left, q, strict=True)]
        beta = sum(common)
        times = (1 - (1 - beta) ** k) / beta if beta > 0 else k
        return [min(1, left[token] / (rho * q[token])) for token in tokens], [share * times for share in common]

    return descend_reference(row, p, coins, judge)


def transport_reference(row: Row, p: Sequence[Law], coins: Coins, rounds: int = 20) -> tuple[list[int], int]:
    """The accepted path of nodes and the bonus token by the rule of `Transport` with a class for every token."""

    def judge(left: Law, q: Law, tokens: Sequence[int]) -> tuple[list[Number], Law]:
        if len(tokens) == 1:
            return [min(1, left[tokens[0]] / q[tokens[0]])], q
        beats = tournament_reference(left, q, rounds)
        cover = [b * sum(2 * c * beats(x, y) for y, c in enumerate(q)) for x, b in enumerate(q)]
        one, two = tokens
        first = beats(one, two) * min(1, left[one] / cover[one]) if cover[one] else 0
        second = beats(two, one) * min(1, left[two] / cover[two]) if cover[two] else 0
        return [first, min(1, second / (1 - first)) if first < 1 else 0], cover

    return descend_reference(row, p, coins, judge, longest=2)


def tournament_reference(left: Law, q: Law, rounds: int) -> Callable[[int, int], Number]:
    """The probability that token x is chosen of a pair x, y: by rank, or by strength among equals."""
    players = sorted((x for x in range(len(q)) if q[x] > 0), key=lambda x: left[x] / q[x])
    short, reach, want = [], 0.0, 0.0
    for x in players:
        reach, want = reach + q[x], want + left[x]
        short.append(reach**2 - want)
    rank, wins, group, reach, done, before, below = {}, {}, 0, 0.0, 0.0, 0.0, 0.0
    for place, x in enumerate(players):
        reach += q[x]
        raised = min(max(0, *short[: place + 1], 0), max(short[place:]))
        done = reach**2 - short[place] + raised
        rank[x], wins[x] = group, max((done - before) / q[x] - 2 * below, 1e-9)
        before = done
        if raised - short[place] <= 1e-9 or place == len(players) - 1:
            group, below = group + 1, reach
    strength = {x: wins[x] ** 4 for x in players}
    for _ in range(rounds):
        got = {
            x: sum(2 * q[y] * strength[x] / (strength[x] + strength[y]) for y in players if rank[y] == rank[x])
            for x in players
        }
        strength = {x: min(max(strength[x] * (wins[x] / got[x]) ** 1.5, 1e-30), 1e30) for x in players}

    def beats(x: int, y: int) -> Number:
        if x not in rank or y not in rank:
            return 0
        return strength[x] / (strength[x] + strength[y]) if rank[x] == rank[y] else int(rank[x] > rank[y])

    return beats


def descend_reference(
    row: Row, p: Sequence[Law], coins: Coins, judge: Judge, longest: int | None = None
) -> tuple[list[int], int]:
    """The path and the bonus of a rule that judges runs of independent siblings."""
    if not row.q:
        return match_reference(row, p, coins)
    path: list[int] = []
    node, left = 0, p[0]
    children = row.children(0)
    while children:
        run = children[: run_length(row, children, len(left), longest)]
        chances, cover = judge(left, recorded_law(row, run[0], len(left)), [row.tokens[child] for child in run])
        for child, chance in zip(run, chances, strict=True):
            if coins.bernoulli(chance):
                node, left = child, p[child]
                path.append(node)
                children = row.children(node)
                break
        else:
            left, children = residual(left, cover), children[len(run) :]
    return path, coins.categorical(left)


def run_length(row: Row, children: Sequence[int], vocab: int, longest: int | None) -> int:
    """How many of the children, from the first on, were drawn independently from the same row of q."""
    source = row.q_row[children[0]]
    law = recorded_law(row, children[0], vocab)
    length = 1
    for child in children[1:longest]:
        independent = row.draw[children[0]] == row.draw[child] == Draw.IID and row.q_row[child] == source
        if not independent or law[row.tokens[child]] <= 0:
            break
        length += 1
    return length
