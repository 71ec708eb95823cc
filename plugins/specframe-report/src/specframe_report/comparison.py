"""Comparison of two benches of the same prompts, value by value, with a test of whether a change exceeds chance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from specframe import InputError
from specframe.plugin import counted, open_console, printable
from specframe_report.grid import Axes, Grid
from specframe_report.intervals import Estimate, Measure, estimate_change
from specframe_report.measures import mean_time, overhead_factor, rate, speedup, tau
from specframe_report.price import Price, format_change, forward_factor, price
from specframe_report.summary import (
    BASELINES,
    MACHINE,
    PLAIN,
    RunSpan,
    check_schema,
    find_baselines,
    format_duration,
    gather_runs,
)

FREE = ("chat", "repeats", "seed", "sets", "limit", "check", "run_code", "bound")
"""Settings that may differ between two benches; if others differ, they measure different things."""

WORTH = 0.05
"""Smallest change of a speedup that is explained if tau did not change."""

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """One measurement of one contestant, in both benches."""

    contestant: str
    figure: str
    old: float
    new: float
    ratio: Estimate
    """new / old, with its interval."""
    forward: float = 1.0
    """Factor of the change due to the target's pass over drafts of equal size: the machine, or the target's code."""

    @property
    def significant(self) -> bool | None:
        """True if the change exceeds chance: its interval excludes 1, also without the forward pass's factor.

        None if unknown: there is no interval, or only the forward pass's factor exceeds chance.
        """
        if self.ratio.low is None or self.ratio.high is None:
            return None
        if self.ratio.low <= 1 <= self.ratio.high:
            return False
        rose = self.ratio.low > 1
        return True if (self.ratio.low > self.forward if rose else self.ratio.high < self.forward) else None


@dataclass(frozen=True)
class BenchComparison:
    """Comparison of two benches."""

    prompts: int
    """Number of prompts that both have."""
    changes: list[Change]
    warnings: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Costs of a cycle, if a speedup changed and tau did not."""
    apart: tuple[float, float] | None = None
    """Seconds between the benches, and the length of one; None if unknown."""


def compare(old: Results, new: Results, seed: int = 0) -> BenchComparison:
    """Returns the changes of every contestant and measurement that both benches have, over the common prompts.

    Raises InputError for benches that cannot be compared: another schema, budget, sampling or target, or no contestant
    or prompt in common.
    """
    for results in (old, new):
        check_schema(results)
    _require_same_settings(old["settings"], new["settings"])
    prompts = _common_prompts(old, new)
    names = _common_contestants(old, new)
    sides = [_Side(results, prompts) for results in (old, new)]
    apart = _distance(old, new)
    changes: list[Change] = []
    reasons: list[str] = []
    for name in names:
        before, after = (side.measures(name) for side in sides)
        prices = sides[0].price(name), sides[1].price(name)
        forward = forward_factor(*prices)
        for figure in FIGURES:
            if figure not in before or figure not in after:
                continue
            found = estimate_change(before[figure], after[figure], seed, apart[0] / apart[1] if apart else 1.0)
            if found is not None:
                factor = forward if figure in BASELINES else 1.0
                changes.append(Change(name, figure, found[0].value, found[1].value, found[2], factor))
        reasons += _explain([change for change in changes if change.contestant == name], *prices)
    return BenchComparison(len(prompts), changes, list(_warnings(old, new, prompts, changes)), reasons, apart)


def print_comparison(comparison: BenchComparison, console: Console | None = None) -> None:
    """Prints the changes as a table, then the caveats."""
    console = console or open_console()
    table = Table(
        title=f"{counted(comparison.prompts, 'prompt')} in both", title_justify="left", box=None, padding=(0, 2, 0, 0)
    )
    for name in ("contestant", "figure", "old", "new", "change", "95 % interval", "significant"):
        numeric = name in ("old", "new", "change", "95 % interval")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=name == "figure")
    last = None
    for change in comparison.changes:
        shown = printable(change.contestant) if change.contestant != last else ""
        last = change.contestant
        table.add_row(shown, change.figure, *_cells(change), style="bold" if change.significant else None)
    console.print(table)
    for reason in comparison.reasons:
        console.print(printable(reason))
    for warning in comparison.warnings:
        console.print(printable(warning), style="yellow")
    if comparison.apart is not None:
        apart, length = map(format_duration, comparison.apart)
        console.print(
            f"The benches took {length} and lie {apart} apart, for which intervals of times allow.", style="dim"
        )
    console.print("Of twenty figures without any change, one passes for significant by source.", style="dim")


class _Side:
    """One bench, restricted to the common prompts."""

    def __init__(self, results: Results, prompts: Sequence[str]) -> None:
        self.results = results
        self.runs = gather_runs(results)
        self.axes = replace(Axes.of(results["runs"], prompts), prompts=tuple(prompts))

    def measures(self, name: str) -> dict[str, Measure]:
        """Returns the contestant's measurements that can be compared, by name."""
        grid, found = self.grid(name), {}
        for figure, base in self._baselines(name).items():
            if base != name:
                found[figure] = speedup(grid, self.grid(base))
        return found | {figure: measure(grid) for figure, measure in FIGURES.items() if measure is not None}

    def price(self, name: str) -> Price | None:
        """Returns the cost of the contestant's cycle; None if no contestant decoded plainly on its target."""
        plain = self._baselines(name).get("speedup")
        return price(self.grid(name), self.grid(plain)) if plain and plain != name else None

    def grid(self, name: str) -> Grid:
        """Returns the contestant's runs of the common prompts."""
        return Grid(self.runs[name], self.axes)

    def _baselines(self, name: str) -> dict[str, str]:
        contestants = self.results["contestants"]
        contestant = next(entry for entry in contestants if entry["name"] == name)
        return find_baselines(contestant, contestants, self.runs)


FIGURES: dict[str, Callable[[Grid], Measure] | None] = {
    "tau": tau,
    "speedup": None,  # these two are against another contestant
    "speedup_hf": None,
    "tokens_per_second": rate,
    "first_token_seconds": lambda grid: mean_time(grid, "first_token_seconds"),
    "1 + overhead": overhead_factor,
}


def _distance(old: Results, new: Results) -> tuple[float, float] | None:
    """Returns the seconds from one bench to the other, and their mean length."""
    spans = [RunSpan.of(results) for results in (old, new)]
    if spans[0] is None or spans[1] is None:
        return None
    return spans[0].distance(spans[1]), (spans[0].seconds + spans[1].seconds) / 2


def _explain(changes: Sequence[Change], old: Price | None, new: Price | None) -> Iterator[str]:
    """Explains why one contestant's speedup changed although tau did not."""
    known = {change.figure: change for change in changes}
    if old is None or new is None or "speedup" not in known or "tau" not in known:
        return
    speed = known["speedup"]
    if known["tau"].significant or abs(speed.ratio.value - 1) < WORTH:
        return
    yield f"{speed.contestant}: tau is what it was; {format_change(old, new)}."
    if speed.significant is None and speed.ratio.low is not None:
        yield (
            "  What exceeds chance is the forward pass over drafts of one size: the machine's load "
            "or the target's code; two benches cannot separate them."
        )


def _cells(change: Change) -> list[str]:
    digits = 1 if change.figure == "tokens_per_second" else 4 if change.figure == "first_token_seconds" else 3
    low, high = change.ratio.low, change.ratio.high
    interval = "-" if low is None or high is None else f"[{low - 1:+.1%}, {high - 1:+.1%}]"
    verdict = {True: "yes", False: "no", None: "unknown"}[change.significant]
    old, new = (f"{value:.{digits}f}" for value in (change.old, change.new))
    return [old, new, f"{change.ratio.value - 1:+.1%}", interval, verdict]


def _require_same_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    settings = [key for key in dict.fromkeys([*old, *new]) if key not in FREE]
    differing = [f"{key} is {old.get(key)} and {new.get(key)}" for key in settings if old.get(key) != new.get(key)]
    if differing:
        raise InputError(f"these benches cannot be compared: {'; '.join(differing)}; run one again with the other's")


def _common_prompts(old: Results, new: Results) -> list[str]:
    """Returns the prompts both have, in the old order, with equal first-turn lengths (later ones depend on answers)."""
    sizes = {prompt["id"]: (prompt.get("tokens") or [])[:1] for prompt in new["prompts"]}
    common = [p["id"] for p in old["prompts"] if sizes.get(p["id"]) == (p.get("tokens") or [])[:1]]
    if not common:
        raise InputError("these benches have no prompt in common; run one again with the other's --data")
    return common


def _common_contestants(old: Results, new: Results) -> list[str]:
    """Returns the contestants that ran in both, on the same target."""
    runs = [gather_runs(results) for results in (old, new)]
    targets = {entry["name"]: entry.get("target") for entry in new["contestants"]}
    names = []
    for entry in old["contestants"]:
        name = entry["name"]
        if name not in targets:
            continue
        if targets[name] != entry.get("target"):
            raise InputError(
                f"these benches cannot be compared: the target of {name} is {entry.get('target')} and {targets[name]}"
            )
        if all(name in side for side in runs):
            names.append(name)
    if not names:
        raise InputError("these benches have no contestant in common that ran in both")
    return names


def _warnings(old: Results, new: Results, prompts: Sequence[str], changes: Sequence[Change]) -> Iterator[str]:
    machines = [(results.get("provenance") or {}).get("hardware") or {} for results in (old, new)]
    for key in MACHINE:
        if machines[0].get(key) != machines[1].get(key):
            yield f"The machines differ: {key} is {machines[0].get(key)} and {machines[1].get(key)}."
    plain = {entry["name"] for entry in new["contestants"] if entry["kind"] == PLAIN}
    for change in changes:
        if change.contestant in plain and change.figure == "tokens_per_second" and change.significant:
            yield (
                f"Plain decoding itself changed by {change.ratio.value - 1:+.1%}: the machine or the target's code is "
                "not what it was, so trust the speedups, which are against it, not the times."
            )
    for name, results in (("old", old), ("new", new)):
        if left := len(results["prompts"]) - len(prompts):
            yield f"Left out, for the other bench does not have it: {counted(left, 'prompt')} of the {name} bench."
        if len({run["repeat"] for run in results["runs"]}) < 2:
            yield f"The {name} bench has one repeat: whether a time changed is unknown."
    for name in sorted({e["name"] for e in old["contestants"]} ^ {e["name"] for e in new["contestants"]}):
        yield f"{name} is in one bench only."
    for entry in [*old["contestants"], *new["contestants"]]:
        if entry.get("error") is not None:
            yield f"{entry['name']} failed in a bench: {entry['error']}"
