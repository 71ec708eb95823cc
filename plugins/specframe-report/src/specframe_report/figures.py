"""One contestant's measurements over some prompts, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from specframe_report.grid import Axes, Grid, Run, dig
from specframe_report.intervals import Measure, estimate
from specframe_report.measures import (
    CYCLE_PHASES,
    PHASES,
    mean_time,
    overhead_factor,
    paired_ratio,
    rate,
    speedup,
    tau,
)
from specframe_report.prediction import predicted_speedup, predicted_speedup_by_weights
from specframe_report.quality import measure_quality

Figures = dict[str, Any]


def gather(
    runs: Mapping[str, Sequence[Run]],
    contestant: Mapping[str, Any],
    axes: Axes,
    baselines: Mapping[str, str],
    seed: int,
) -> Figures:
    """Returns a contestant's measurements over the axes' prompts; None if undefined, absent without cycles.

    `runs` are every contestant's by name; `baselines` names the baselines of `speedup` and `speedup_hf`. Values with an
    interval are {value, low, high}.
    """
    grid = Grid(runs[contestant["name"]], axes)
    others = {figure: Grid(runs[base], axes) for figure, base in baselines.items()}
    figures = {
        "prompts": len({run["prompt"] for run in grid.runs}),
        "runs": len(grid.runs),
        "tokens": int(_total(grid.runs, "tokens")),
        "tokens_per_second": _estimate(rate(grid), seed),
        **{figure: _estimate(speedup(grid, other), seed) for figure, other in others.items()},
        "pairs": {figure: _spread(other, grid) for figure, other in others.items()},
        "first_token_seconds": _estimate(mean_time(grid, "first_token_seconds"), seed),
        "token_seconds": [_value(mean_time(grid, "token_seconds", index)) for index in (0, 1)],
        "peak_memory_bytes": max((run.get("peak_memory_bytes") or 0 for run in grid.runs), default=0) or None,
        "identity": identify(grid.runs),
        **measure_quality(grid, others.get("speedup")),
    }
    if any(run.get("cycles") for run in grid.runs):
        figures |= _acceptance(grid, seed) | _costs(grid)
        if baselines.get("speedup") != contestant["name"]:
            plain = _costs(others["speedup"]) if "speedup" in others else None
            figures["predicted"] = _predict(figures, plain, contestant.get("weights"))
    return figures


def _acceptance(grid: Grid, seed: int) -> Figures:
    cycles, accepted = (_total(grid.runs, field) for field in ("cycles", "accepted"))
    drafted, bounded = (_total(grid.runs, field) for field in ("drafted", "optimum_cycles"))
    alpha = [count / cycles for count in _by_depth(grid.runs)]
    return {
        "cycles": int(cycles),
        "tau": _within(_estimate(tau(grid), seed), 1.0, 1.0 + len(alpha)),
        "accepted_per_cycle": accepted / cycles,
        "alpha": alpha,
        "optimal_alpha": _total(grid.runs, "optimum") / bounded if bounded else None,
        "alpha_conditional": [
            child / parent if parent else 0.0 for parent, child in zip([1.0, *alpha], alpha, strict=False)
        ],
        "draft_efficiency": accepted / drafted if drafted else None,
    }


def _within(figure: dict[str, float | None] | None, lowest: float, highest: float) -> dict[str, float | None] | None:
    """Clips a value's interval to the possible range, which few prompts may exceed."""
    if figure is None or figure["low"] is None or figure["high"] is None:
        return figure
    return figure | {"low": max(figure["low"], lowest), "high": min(figure["high"], highest)}


def _costs(grid: Grid) -> Figures:
    """Breaks down the time: shares of the cycles, seconds per token, seconds per forward pass, overhead."""
    seconds = {phase: _total(grid.runs, "phases", phase) for phase in PHASES}
    cycles = sum(seconds[phase] for phase in CYCLE_PHASES)
    tokens = _total(grid.runs, "tokens")
    scored = _total(grid.runs, "target_calls")  # 0 if the target's forward passes were not observed
    factor = _value(overhead_factor(grid)) if scored else None
    forwards = {}
    for model in ("target", "drafter"):
        calls = _total(grid.runs, f"{model}_calls")
        forwards[model] = _total(grid.runs, f"{model}_seconds") / calls if calls else None
    return {
        "phases": {phase: seconds[phase] / cycles for phase in CYCLE_PHASES} if cycles else None,
        "phase_token_seconds": {phase: seconds[phase] / tokens for phase in PHASES} if cycles and tokens else None,
        "forward_seconds": forwards,
        "steps": _total(grid.runs, "drafter_calls") / scored if scored else None,
        "overhead": None if factor is None else factor - 1,
    }


def _predict(figures: Figures, plain: Figures | None, weights: Mapping[str, int] | None) -> dict[str, float | None]:
    """Returns the speedup predicted by CORAL's Eq. (1) and Eq. (6); None without the necessary values."""
    found: dict[str, float | None] = {"coral_1": None, "coral_6": None}
    mean, steps = figures["tau"]["value"], figures["steps"]
    alone, many = dig(plain, "forward_seconds", "target"), figures["forward_seconds"]["target"]
    if steps is None:
        return found
    if alone and many:
        drafting = figures["forward_seconds"]["drafter"] or 0.0
        found["coral_1"] = predicted_speedup(
            mean, target_seconds=alone, scoring_seconds=many, drafter_seconds=drafting, steps=steps
        )
    target, drafter = dig(weights, "target"), dig(weights, "drafter")
    if target and (drafter is not None or not steps):
        found["coral_6"] = predicted_speedup_by_weights(
            mean, target_weights=target, drafter_weights=drafter or 0, steps=steps
        )
    return found


def identify(runs: Sequence[Run]) -> Figures | None:
    """Returns the share of outputs that equal the reference's; a prompt counts by its worst run. None if not compared.

    A run that is identical but has a gap differs from the reference only after a near tie of the logits. For the
    largest gap among those, and among the others, the arithmetic noise at that place is given, too. `plain` is the
    number of prompts whose text is that of plain decoding in every run, None without plain decoding.
    """
    compared = [run for run in runs if run.get("identical") is not None]
    if not compared:
        return None
    prompts = {run["prompt"] for run in compared}
    differing = {run["prompt"] for run in compared if not run["identical"]}
    ties = {run["prompt"] for run in compared if run["identical"] and run.get("gap") is not None} - differing
    others = {run["prompt"] for run in compared if not run.get("as_plain")}
    return {
        "plain": None if any(run.get("as_plain") is None for run in compared) else len(prompts - others),
        "identical": len(prompts - differing - ties),
        "ties": len(ties),
        "differing": sorted(differing),
        "largest_tie": _largest_gap([run for run in compared if run["identical"]]),
        "largest_gap": _largest_gap([run for run in compared if not run["identical"]]),
    }


def _largest_gap(runs: Sequence[Run]) -> dict[str, float | None] | None:
    """Returns the largest gap of two logits where runs diverge from the reference, and the noise at that place."""
    parted = [run for run in runs if run.get("gap") is not None]
    if not parted:
        return None
    worst = max(parted, key=lambda run: run["gap"])
    return {"gap": worst["gap"], "noise": worst.get("noise")}


def _estimate(measure: Measure, seed: int) -> dict[str, float | None] | None:
    found = estimate(measure, seed)
    return found.as_dict() if found else None


def _value(measure: Measure) -> float | None:
    numerator, denominator = measure.parts()
    return float(numerator.sum() / denominator.sum()) if denominator.sum() else None


def _spread(baseline: Grid, ours: Grid) -> dict[str, float] | None:
    """Returns the paired ratios of single runs: median and extremes."""
    ratios = paired_ratio(ours, baseline)
    finite = ratios[np.isfinite(ratios)].tolist()
    return {"median": median(finite), "low": min(finite), "high": max(finite)} if finite else None


def _by_depth(runs: Sequence[Run]) -> list[float]:
    depth = max((len(run.get(field) or ()) for run in runs for field in ("reached", "possible")), default=0)
    return [_total(runs, "reached", level) for level in range(depth)]


def _total(runs: Sequence[Run], *path: str | int) -> float:
    return float(sum(dig(run, *path) or 0 for run in runs))
