"""`specframe profile RECIPE`: measures how often each choice of the drafter is accepted, and finds the best tree."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specframe.cli.arguments import (
    PATH,
    json_option,
    limit_option,
    prompts_option,
    prompts_to_measure,
    recipe_command,
    replanned,
)

if TYPE_CHECKING:
    from specframe.decoding.pipeline import Prompt
    from specframe.inspect.profile import Profile
    from specframe.recipes.build import Plan

MEASURED = Path("-")
"""Value of --check without a file: the prompts that were measured."""


class Sizes(click.ParamType):
    """Tree sizes: whole numbers separated by commas."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        """Returns the numbers."""
        try:
            return [int(number) for number in str(value).split(",")]
        except ValueError:
            self.fail(f"'{value}' is no list of numbers such as 1,4,8", param, ctx)


@recipe_command
@prompts_option
@limit_option
@click.option(
    "--context", default=0, metavar="N", help="lengthen each prompt to at least N tokens by other prompts before it"
)
@click.option("--depth", default=4, metavar="N", help="levels to measure")
@click.option("--width", default=8, metavar="N", help="choices to measure per node")
@click.option(
    "--draw",
    type=click.Choice(["top", "iid", "without_replacement"]),
    default="top",
    help="how the choices are drawn",
)
@click.option(
    "--sizes",
    type=Sizes(),
    default="1,4,8,16,32",
    metavar="N,N,..",
    help="sizes of trees to time, in nodes, root included; 1 is plain decoding",
)
@click.option(
    "--check",
    type=PATH,
    is_flag=False,
    flag_value=str(MEASURED),
    metavar="[FILE]",
    help="decode these prompts (default: those measured) with the fastest tree, to see if its forecast holds",
)
@click.option(
    "--precisions",
    is_flag=True,
    help="time the target's forward passes in float32, bfloat16, int8 and int4, by native passes, on fewer threads "
    "and, with target.compile=true, compiled; recommend one of them and its tree",
)
@click.option(
    "--skip",
    is_flag=True,
    help="search for layers that the target can skip when it drafts for itself; forecast what drafter `self` gains",
)
@json_option("print what --out would write, as one JSON object, instead of the table")
@click.option(
    "--out",
    type=PATH,
    metavar="FILE",
    help="where to write the profile, which the trees `sequoia`, `adaptive`, `goodput` and `dynamic` read",
)
def profile(
    plan: Plan,
    prompts: Path | None,
    limit: int | None,
    context: int,
    depth: int,
    width: int,
    draw: str,
    sizes: list[int],
    check: Path | None,
    precisions: bool,
    skip: bool,
    as_json: bool,
    out: Path | None,
) -> int:
    """Measure acceptance by level and rank, and compute the best tree from it."""
    from specframe.files.folders import check_file
    from specframe.files.prompts import read_prompts
    from specframe.kernel.errors import InputError
    from specframe.kernel.types import Draw

    texts = prompts_to_measure(prompts, limit, plan)
    if min(depth, width) < 1:
        raise InputError("--depth and --width must be at least 1")
    if min(sizes) < 1:
        raise InputError(f"a tree has a node at least: --sizes {min(sizes)} times none")
    if as_json and (precisions or check is not None):
        raise InputError("--json prints the measured tables alone: leave --check and --precisions out")

    if out is not None:
        check_file(out, "give --out another place")
    if skip:
        if out is not None or precisions or check is not None or context:
            raise InputError("--skip measures the target alone: leave --out, --check, --context and --precisions out")
        return search_layers(plan, texts, as_json=as_json)

    from specframe.cli.render import print_lines, terminal_columns
    from specframe.cli.render.profile import show_check, show_table, show_trees
    from specframe.decoding.pipeline import Pipeline
    from specframe.inspect.profile import lengthen, profile

    drawn = Draw[draw.upper()]
    pipeline = Pipeline.build(plan)
    if context:
        texts = lengthen(pipeline, texts, context)
    others = texts if check is None or check == MEASURED else read_prompts(check, limit)
    found = profile(pipeline, texts, depth=depth, width=width, draw=drawn, sizes=sizes)
    if as_json:
        print(json.dumps(found.as_data()), flush=True)
        if out is not None:
            found.write(out)
        return 0
    columns = terminal_columns()
    print_lines([*show_table(found, columns), "", *show_trees(found, depth, columns)])
    if precisions:
        print_lines(["", *show_precisions(plan, found, sizes, depth)])
    choice = found.fastest(depth)
    if check is not None:
        from dataclasses import replace

        from specframe.components.trees.fixed import Fixed
        from specframe.components.trees.shape import dotted
        from specframe.inspect.forecast import measure_tau

        tree = Fixed(paths=[dotted(path) for path in choice.shape.paths], draw=drawn)
        again = replace(pipeline, run=replace(pipeline.run, seed=pipeline.run.seed + 1))
        fastest = measure_tau(again.with_parts(tree=tree), others)
        own = measure_tau(again, others, found.calibration)
        print_lines(["", *show_check(choice, fastest, own)])
    if out is not None:
        found.write(out)
        size = f"nodes: {choice.shape.nodes - 1}, depth: {choice.shape.depth}"
        print(f"\ntree: {{use: dynamic, calibration: {out}}}")
        print(f"tree: {{use: sequoia, acceptance: {out}, {size}, draw: {draw}}}")
    return 0


def search_layers(plan: Plan, prompts: Sequence[Prompt], *, as_json: bool) -> int:
    """Prints the value of drafts by the target without some of its layers, and the recipe lines of the best."""
    from specframe.decoding.pipeline import Pipeline
    from specframe.inspect.layer_search import OwnDraft, search

    def show(draft: OwnDraft) -> None:
        if not as_json:
            figures = f"{draft.agreement:9.3f}{1000 * draft.seconds:8.2f}{draft.depth:8}{draft.gain:10.2f}"
            print(f"{figures}   {draft.option}", flush=True)

    if not as_json:
        print("agreement  ms each  depth  forecast   (temperature 0; times plain decoding, from forward passes alone)")
    found = search(Pipeline.build(plan), prompts, show)
    if as_json:
        print(json.dumps([{**asdict(draft), "option": draft.option} for draft in found]))
        return 0
    best = max(found, key=lambda draft: draft.gain)
    print(f"\ndrafter: {{use: self, {best.option}}}\ntree: {{use: chain, depth: {best.depth}}}")
    if best.gain <= 1:
        print("None pays here: plain decoding is faster. That is the best of them.")
    return 0


def show_precisions(plan: Plan, found: Profile, sizes: Sequence[int], depth: int) -> list[str]:
    """Returns the forecast for each precision of the target as lines, the fastest marked, and its section."""
    from specframe.decoding.costs import time_forwards
    from specframe.files.text import counted
    from specframe.inspect.precisions import PRECISIONS, fastest_tree, section, time_threads
    from specframe.kernel.errors import SpecframeError

    lines = [f"{'target':20}  ms plain  nodes  levels    tau   ms a cycle  tokens/s   (forecast from forward passes)"]
    compiles = plan.parts["target"].options.get("compile", False)
    speeds: dict[str, float] = {}
    fastest: Any = None
    size = 1
    for name, values in PRECISIONS.items():
        if values["compile"] == "true" and not compiles:  # compiling takes minutes
            continue
        try:
            target = replanned(f"target.{key}={value}" for key, value in values.items()).parts["target"].build()
            forwards = time_forwards(target, {1, *sizes})
        except SpecframeError as error:
            lines.append(f"{name:20}  {error}")
            continue
        tree = fastest_tree(found, forwards, depth)
        nodes, levels = (1, 0) if tree is None else (tree.shape.nodes, tree.shape.depth)
        tau, seconds = (1.0, forwards[1]) if tree is None else (tree.tau, tree.seconds)
        speeds[name] = tau / seconds
        if speeds[name] == max(speeds.values()):
            fastest, size = target, nodes
        plain, cycle = 1000 * forwards[1], 1000 * seconds
        lines.append(f"{name:20}{plain:10.2f}{nodes:7}{levels:8}{tau:7.2f}{cycle:13.2f}{speeds[name]:10.1f}")
    if speeds:
        best = max(speeds, key=lambda name: speeds[name])
        precision = best.partition(",")[0]
        lines += ["", f"target: {{{section(best)}}}   # the fastest; its texts are those of a model in {precision}"]
        for count, forwards in time_threads(fastest, size).items():
            figures = [f"{counted(nodes, 'node')} {1000 * seconds:.2f} ms" for nodes, seconds in forwards.items()]
            lines.append(f"{counted(count, 'thread')}: {', '.join(figures)}")
    return lines
