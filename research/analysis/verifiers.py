"""The verifiers against each other on the embedded target: ``python research/analysis/verifiers.py``.

All of them judge the very same drafts, so that what differs is the rule alone: tokens per cycle, next to what the rules
promise for these drafts, and acceptance at one level next to the optimum. Numbers go to verifiers.json and into the
tables of docs/explanation/verifier-analysis.md. Nothing here is about time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from expectation import EXPECTED, Draft, accepted, cover_alone, cover_together, normalised
from panel import VERIFIERS, Panel, follow
from sample import choose, command, interval, keep, open_recipe
from torch import Tensor
from verifiers_page import show

from specframe import Sampling
from specframe.components.trees.fixed import Chain, Fixed
from specframe.plugin import Context, Draw, SeededRandom, TokenTree, TreePolicy, greedy_acceptance, optimal_acceptance
from specframe.testing.tables import GivenDrafter
from specframe_trees.greedy import Greedy
from specframe_trees.spectr.kseq import KSeq
from specframe_trees.spectr.transport import Transport

NUMBERS = Path(__file__).resolve().parent / "verifiers.json"
TEMPERATURES = (0.6, 1.0)
WIDTHS = [2, 2, 1, 1]
TREES: dict[str, TreePolicy] = {
    "chain": Chain(depth=4, draw=Draw.IID),
    "iid": Fixed(widths=WIDTHS, draw=Draw.IID),
    "without_replacement": Fixed(widths=WIDTHS, draw=Draw.WITHOUT_REPLACEMENT),
    "greedy": Greedy(widths=WIDTHS),
    "top": Fixed(widths=WIDTHS),
}
SIBLINGS = (2, 3)
DRAWS = ("iid", "without_replacement", "greedy", "top")

Totals = dict[str, float]
"""Totals of some cycles, by name."""


def measure_drafts(limit: int, tokens: int, copies: int) -> dict[str, Any]:
    """Tokens per cycle over the same drafts, measured and exact, and the ratio to `recursive`."""
    pipeline = open_recipe("hass")
    figures: dict[str, Any] = {}
    for temperature in TEMPERATURES:
        for name, tree in TREES.items():
            panel = panel_for(tree, copies)
            notes = follow(pipeline, tree, temperature, limit, tokens, partial(judge, panel))
            rows = [add_up(cycles) for cycles in notes]
            figures.setdefault(str(temperature), {})[name] = {
                "cycles": int(sum(row["cycles"] for row in rows)),
                "verifiers": {rule: compare(rows, rule) for rule in panel.verifiers},
            }
            print(f"  temperature {temperature}, {name}", flush=True)
    return {"copies": copies, "temperatures": figures}


def panel_for(tree: TreePolicy, copies: int) -> Panel:
    """The verifiers that accept the tree's draws; where there are siblings `block` hands over to `traversal`."""
    fits = {name: verifier for name, verifier in VERIFIERS.items() if tree.promise.draws <= verifier.needs.draws}
    if not isinstance(tree, Chain):
        del fits["block"]
    return Panel(fits, copies)


def judge(panel: Panel, draft: TokenTree, p: Tensor) -> Totals:
    """The tokens that each of the panel emits from one draft, p [1, N, V], and what its rule gives on average."""
    known = Draft.of(draft, p[0])
    exact = {f"exact {rule}": 1 + expect(known) for rule, expect in EXPECTED.items()}
    return {"cycles": 1.0} | panel.judge_copies(draft, p) | exact


def compare(rows: Sequence[Totals], rule: str) -> dict[str, Any]:
    """A rule's tokens per cycle and their ratio to those of `recursive`, over prompts; measured, and exactly."""
    exact = f"exact {rule}"
    known = exact in rows[0]
    return {
        "tau": interval(rows, partial(ratio, above=rule, below="cycles")),
        "ratio": interval(rows, partial(ratio, above=rule, below="recursive")),
        "exact_tau": interval(rows, partial(ratio, above=exact, below="cycles")) if known else None,
        "exact_ratio": interval(rows, partial(ratio, above=exact, below="exact recursive")) if known else None,
    }


def measure_bound(limit: int, tokens: int, redraws: int, contexts: int) -> dict[str, Any]:
    """Acceptance of one level's siblings next to the optimum, over some cycles' laws at the root."""
    pipeline = open_recipe("hass")
    figures: dict[str, Any] = {}
    for temperature in TEMPERATURES:
        notes = follow(pipeline, TREES["chain"], temperature, limit, tokens, laws_at_root)
        laws = [cycles[:: -(-len(cycles) // contexts)] for cycles in notes]
        for draw in DRAWS:
            for siblings in SIBLINGS:
                policy, random = policy_of(draw, siblings), SeededRandom(2, redraws)
                exact = [[accept(policy, p, q) for p, q in some] for some in laws]
                panel = Panel({name: VERIFIERS[name] for name in redrawn(policy)}, redraws)
                drawn = [[redraw(panel, policy, p, q, random) for p, q in some] for some in laws]
                both = [[a | b for a, b in zip(*pair, strict=True)] for pair in zip(exact, drawn, strict=True)]
                rows = [add_up(cycles) for cycles in both]
                rules = [name for name in VERIFIERS if name in rows[0]]
                figures.setdefault(str(temperature), {}).setdefault(draw, {})[str(siblings)] = {
                    "contexts": sum(map(len, laws)),
                    "optimum": interval(rows, partial(ratio, above="optimum", below="cycles")),
                    "ratios": {name: interval(rows, partial(ratio, above=name, below="optimum")) for name in rules},
                    "redrawn": list(panel.verifiers),
                    "furthest": max(abs(cycle["recursive"] - cycle["optimum"]) for some in both for cycle in some),
                }
            print(f"  temperature {temperature}, {draw}", flush=True)
    return {"redraws": redraws, "temperatures": figures}


def laws_at_root(draft: TokenTree, p: Tensor) -> tuple[Tensor, Tensor]:
    """The target's and the drafter's law after the root of a chain of draws, p [1, N, V]: [V] float64 each."""
    known = Draft.of(draft, p[0])
    assert known.q is not None
    return known.p[0], known.q[0]


def policy_of(draw: str, siblings: int) -> TreePolicy:
    """One level of siblings."""
    return Greedy(widths=[siblings]) if draw == "greedy" else Fixed(widths=[siblings], draw=Draw[draw.upper()])


def accept(policy: TreePolicy, p: Tensor, q: Tensor) -> Totals:
    """Returns the probability that a level accepts a sibling, exact where possible, and the optimum; p and q [V].

    Rules that aren't named are `recursive` there.
    """
    siblings = policy.promise.nodes - 1
    pair = partial(cover_together, Transport(), q)
    totals: Totals = {"cycles": 1.0}
    if isinstance(policy, Greedy):
        return totals | {
            "optimum": float(greedy_acceptance(p, q, siblings)),
            "recursive": accepted(p, [cover_alone(law) for law in laws_of(policy, q)]),
        }
    (draw,) = policy.promise.draws
    totals["optimum"] = float(optimal_acceptance(p, q, draw, siblings))
    if draw is not Draw.WITHOUT_REPLACEMENT:
        totals["recursive"] = accepted(p, [cover_alone(law) for law in laws_of(policy, q)])
    elif siblings == 2:
        totals["transport"] = accepted(p, [pair(2, unreplaced=True)])
    if draw is Draw.IID:
        totals["kseq"] = accepted(p, [cover_together(KSeq(), q, siblings)])
        totals["transport"] = accepted(p, [pair(min(2, siblings - done)) for done in range(0, siblings, 2)])
    return totals


def redrawn(policy: TreePolicy) -> list[str]:
    """The verifiers whose acceptance of a level's siblings `accept` does not know."""
    if policy.promise.draws != {Draw.WITHOUT_REPLACEMENT}:
        return []
    return ["recursive"] if policy.promise.nodes == 3 else ["recursive", "transport"]


def redraw(panel: Panel, policy: TreePolicy, p: Tensor, q: Tensor, random: SeededRandom) -> Totals:
    """Returns how often the panel accepts one of a level's siblings, drawn anew for each row, p and q [V]."""
    if not panel.verifiers:
        return {}
    random.draft.advance()
    root = torch.zeros(panel.copies, dtype=torch.int64)
    drafts = policy.grow(GivenDrafter(q).expand, root, Context(Sampling(temperature=1.0), random.draft))
    emitted = panel.judge(drafts, p.float().expand(*drafts.tokens.shape, -1))
    return {name: count - 1 for name, count in emitted.items()}


def laws_of(policy: TreePolicy, q: Tensor) -> list[Tensor]:
    """The laws [V] that one level's siblings come from by q [V], in slot order; no draws without replacement."""
    drawn = (
        {Draw.TOP: 0, Draw.IID: policy.promise.nodes - 1}[next(iter(policy.promise.draws))]
        if len(policy.promise.draws) == 1
        else 1
    )
    best = q.topk(policy.promise.nodes - 1 - drawn).indices
    return [normalised(q.index_fill(0, best, 0))] * drawn + [*torch.nn.functional.one_hot(best, len(q)).to(q.dtype)]


def add_up(cycles: Sequence[Totals]) -> Totals:
    """The sums over cycles."""
    return {name: sum(cycle[name] for cycle in cycles) for name in cycles[0]}


def ratio(rows: Sequence[Totals], above: str, below: str) -> float:
    """One total over another."""
    return sum(row[above] for row in rows) / sum(row[below] for row in rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures what is asked for; what was measured before stays."""
    parser = command(__doc__, tokens=64)
    parser.add_argument("--copies", type=int, default=16, help="copies of a draft that are judged (default: 16)")
    parser.add_argument("--redraws", type=int, default=64, help="times that siblings are redrawn (default: 64)")
    parser.add_argument(
        "--contexts", type=int, default=9, help="cycles of a prompt whose laws are asked, at most (default: 9)"
    )
    options = choose(parser, ("drafts", "bound"), arguments)
    numbers: dict[str, Any] = {}
    for name in options.analyses:
        print(f"{name} ...", flush=True)
        if name == "drafts":
            numbers[name] = measure_drafts(options.limit, options.tokens, options.copies)
        else:
            numbers[name] = measure_bound(options.limit, options.tokens, options.redraws, options.contexts)
    show(keep(NUMBERS, numbers))


if __name__ == "__main__":
    main()
