"""`specframe scaling RECIPE`: trains a grid of drafters, measures them, fits laws and plans."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specframe import InputError, recipe_command
from specframe.plugin import UserPath, make_folder, read_records
from specframe_scaling.grid import SweepGrid, check_law, check_sizes, read_count, read_counts, read_time

if TYPE_CHECKING:
    from specframe_scaling.points import Results
    from specframe_scaling.training import Sweep

PATH = UserPath()


def numbers(text: str | None) -> tuple[int, ...]:
    """Parses numbers separated by commas. Raises InputError for other texts."""
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise InputError(f"{text!r} is no list of numbers such as 1,2,4") from None


def read_planned(text: str) -> int:
    """Parses the number of tokens of a plan. Raises InputError for other texts."""
    name, _, value = text.partition("=")
    if name != "tokens":
        raise InputError(f"--plan {text}: give the tokens to plan for, such as tokens=50M")
    return read_count(value)


@recipe_command
@click.option(
    "--tokens", default="50k,120k,300k,700k,2M", metavar="LIST", help="token counts of the sweep: 50k,160k,5M"
)
@click.option("--layers", metavar="LIST", help="numbers of decoder layers of the drafters: 1,2,4")
@click.option("--width", metavar="LIST", help="inner widths of the drafters' MLPs: 256,512")
@click.option("--seeds", default="0", metavar="LIST", help="seeds; two or more show the noise")
@click.option("--batch", default="1,2,4,8,16", metavar="LIST", help="rows side by side, for the law of throughput")
@click.option("--share", default=0.15, type=click.FloatRange(0, 1), metavar="S", help="share of a run that decays")
@click.option("--out", default="runs/scaling", type=PATH, metavar="DIR", help="where drafters and points are kept")
@click.option("--jobs", default=1, type=click.IntRange(min=1), metavar="N", help="trainings side by side")
@click.option("--train-only", is_flag=True, help="train the drafters, and measure nothing")
@click.option("--prompts", type=PATH, metavar="FILE", help="prompts to measure on, in place of the recipe's")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="only the first N prompts of the file")
@click.option("--fit", type=PATH, metavar="FILE", help="fit the results in FILE; train and measure nothing")
@click.option("--budget", metavar="TIME", help="plan a training of so much time: 90s, 20min or 2h")
@click.option("--plan", "planned", metavar="tokens=N", help="tau of every size after so many tokens")
def scaling(
    plan: Any,
    tokens: str,
    layers: str | None,
    width: str | None,
    seeds: str,
    batch: str,
    share: float,
    out: Path,
    jobs: int,
    train_only: bool,
    prompts: Path | None,
    limit: int | None,
    fit: Path | None,
    budget: str | None,
    planned: str | None,
) -> int:
    """Fit how tau and speed grow with training, and plan a drafter: how many tokens, layers and widths?

    Drafters of a grid of sizes are trained on several numbers of tokens, each size in one run; the same command goes on
    where it was interrupted. Their tau on the prompts gives laws, and the laws a plan.
    """
    from specframe_scaling.training import Sweep

    grid = SweepGrid(tuple(read_counts(tokens)), numbers(layers), numbers(width), numbers(seeds), share)
    seconds = None if budget is None else read_time(budget)
    extrapolated = None if planned is None else read_planned(planned)
    if fit is None:
        check_sizes(grid, plan.parts["drafter"])
        if not train_only:
            check_law(grid)
        if "train" not in plan.settings:
            raise InputError(f"{plan.recipe.path}: there is no train section; it needs at least data and a rollout")
        make_folder(out)
        given = click.get_current_context().params
        sweep = Sweep(given["recipe"], given["overrides"], grid, out)
        for trunk in sweep.train(jobs):
            print(f"trained {trunk.name}", file=sys.stderr, flush=True)
        if train_only:
            print(f"{len(grid.trunks) * len(grid.tokens)} drafters in {out}")
            return 0
        texts = [record.turns[0] for record in read_records(prompts, limit)] if prompts else []
        fit = out / "results.json"
        _measure(sweep, texts, numbers(batch)).write(fit)
        print(f"measured {len(grid.trunks) * len(grid.tokens)} drafters: {fit}", file=sys.stderr, flush=True)
    from specframe_scaling.points import Results
    from specframe_scaling.report import ScalingReport

    report = ScalingReport(Results.read(fit))
    parts = [report.laws(), report.throughput()]
    parts += [] if extrapolated is None else [report.extrapolation(extrapolated)]
    parts += [] if seconds is None else [report.plan(seconds)]
    print("\n\n".join(part for part in parts if part))
    return 0


def _measure(sweep: Sweep, prompts: list[str], batches: Sequence[int]) -> Results:
    """Returns the results of a trained sweep; each new measurement is stored in a file."""
    from specframe_scaling.measuring import Bench, kept_passes, load_or_make
    from specframe_scaling.points import Point, Results, Speed

    bench = Bench(sweep.recipe, sweep.changes, prompts)
    points: list[Point] = []
    longest: dict[tuple[int, int], Path] = {}
    for trunk in sweep.grid.trunks:
        for tokens, folder in sorted(sweep.grid.folders(trunk, sweep.out).items()):
            file = sweep.out / "points" / f"{trunk.name}-{tokens}.json"
            points.append(load_or_make(file, Point, partial(bench.point, folder, trunk.seed)))
            longest.setdefault(points[-1].size, folder)
            if tokens == max(sweep.grid.tokens):
                longest[points[-1].size] = folder
            print(f"{trunk.name}, {points[-1].tokens:,} tokens: tau {points[-1].tau:.2f}", file=sys.stderr, flush=True)
    speeds = []
    for size, folder in longest.items():
        for batch in batches:
            file = sweep.out / "speeds" / f"L{size[0]}-W{size[1]}-B{batch}.json"
            speeds.append(load_or_make(file, Speed, partial(bench.speed, folder, size, batch)))
    return Results(points, speeds, kept_passes(sweep.out / "passes.json", bench, longest) if speeds else None)
