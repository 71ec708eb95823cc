"""Slow, literal references of the rules that judge several siblings together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specframe.kernel.types import ALL_DRAWS, Draw
from tests.components.verifiers.references import Coins, Law, Number, Row, match_reference, recorded_law, residual

Judge = Callable[[Law, Law, Sequence[int], int], tuple[list[Number], Law]]
"""Function from the law that is left, q, the tokens of a run and their draw to the chance of each, and the cover."""


def kseq_reference(row: Row, p: Sequence[Law], coins: Coins, steps: int = 20) -> tuple[list[int], int]:
    """The accepted path of nodes and the bonus token by the rule of `KSeq`."""

    def judge(left: Law, q: Law, tokens: Sequence[int], draw: int) -> tuple[list[Number], Law]:
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

    def judge(left: Law, q: Law, tokens: Sequence[int], draw: int) -> tuple[list[Number], Law]:
        if len(tokens) == 1:
            return [min(1, left[tokens[0]] / q[tokens[0]])], q
        meet = pair_law(q, draw)
        beats = tournament_reference(left, q, meet, rounds)
        cover = [sum(meet[x][y] * beats(x, y) for y in range(len(q))) for x in range(len(q))]
        one, two = tokens
        first = beats(one, two) * min(1, left[one] / cover[one]) if cover[one] else 0
        second = beats(two, one) * min(1, left[two] / cover[two]) if cover[two] else 0
        return [first, min(1, second / (1 - first)) if first < 1 else 0], cover

    return descend_reference(row, p, coins, judge, longest=2, together=ALL_DRAWS - {Draw.TOP})


def pair_law(q: Law, draw: int) -> list[list[Number]]:
    """The probability that two siblings are x and y, in either order; twice that of x and x."""
    if draw == Draw.IID:
        return [[2 * a * b for b in q] for a in q]
    odds = [a / (1 - a) for a in q]
    return [[odds[x] * b + odds[y] * a if x != y else 0 for y, b in enumerate(q)] for x, a in enumerate(q)]


def tournament_reference(
    left: Law, q: Law, meet: Sequence[Sequence[Number]], rounds: int
) -> Callable[[int, int], Number]:
    """The probability that token x is chosen of a pair x, y: by rank, or by strength among equals."""
    classes = sorted((x for x in range(len(q)) if q[x] > 0), key=lambda x: left[x] / q[x])
    inside: list[Number] = []
    want: list[Number] = []
    for place, x in enumerate(classes):
        fresh = sum(meet[x][y] for y in classes[:place]) + meet[x][x] / 2
        inside.append(fresh + (inside[-1] if inside else 0))
        want.append(left[x] + (want[-1] if want else 0))
    short = [a - b for a, b in zip(inside, want, strict=True)]
    rank: dict[int, int] = {}
    rate: dict[int, Number] = {}
    done: Number = 0
    group = 0
    for place, x in enumerate(classes):
        rank[x] = group
        wins = want[place] + min(max(0, *short[: place + 1], 0), max(short[place:]))
        lower = sum(meet[x][y] for y in classes[:place] if rank[y] < group)
        rate[x] = max((wins - done - lower) / q[x], 1e-9)
        done = wins
        group += wins - inside[place] <= 1e-9
    strength = {x: rate[x] ** 4 for x in classes}
    for _ in range(rounds):
        got = {
            x: sum(meet[x][y] * strength[x] / (strength[x] + strength[y]) for y in classes if rank[y] == rank[x]) / q[x]
            for x in classes
        }
        strength = {
            x: min(max(strength[x] * (rate[x] / got[x]) ** 1.5, 1e-30), 1e30) if got[x] > 0 else strength[x]
            for x in classes
        }

    def beats(x: int, y: int) -> Number:
        if x not in rank or y not in rank:
            return 0
        return strength[x] / (strength[x] + strength[y]) if rank[x] == rank[y] else int(rank[x] > rank[y])

    return beats


def descend_reference(
    row: Row,
    p: Sequence[Law],
    coins: Coins,
    judge: Judge,
    longest: int | None = None,
    together: frozenset[Draw] = frozenset({Draw.IID}),
) -> tuple[list[int], int]:
    """The path and the bonus of a rule that judges runs of siblings."""
    if not row.q:
        return match_reference(row, p, coins)
    path: list[int] = []
    node, left = 0, p[0]
    children = row.children(0)
    while children:
        law = recorded_law(row, children[0], len(left))
        run = children[: run_length(row, children, law, longest, together)]
        chances, cover = judge(left, law, [row.tokens[child] for child in run], row.draw[run[0]])
        for child, chance in zip(run, chances, strict=True):
            if coins.bernoulli(chance):
                node, left = child, p[child]
                path.append(node)
                children = row.children(node)
                break
        else:
            left, children = residual(left, cover), children[len(run) :]
    return path, coins.categorical(left)


def run_length(row: Row, children: Sequence[int], law: Law, longest: int | None, together: frozenset[Draw]) -> int:
    """Returns the number of children, from the first on, that were drawn alike from the same row of q."""
    first = children[0]
    if row.draw[first] == Draw.WITHOUT_REPLACEMENT and max(law) > 0.999:
        return 1
    length = 1
    for child in children[1:longest]:
        alike = row.draw[first] == row.draw[child] and row.q_row[child] == row.q_row[first]
        if not alike or row.draw[first] not in together or law[row.tokens[child]] <= 0:
            break
        length += 1
    return length
