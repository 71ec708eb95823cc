"""`specframe profile RECIPE`: how often each choice of the drafter is accepted, and which tree that is best for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specframe.decoding.pipeline import Prompt
    from specframe.inspect.profile import Profile
    from specframe.kernel.build import Plan

SUMMARY = "measure acceptance by level and rank, and compute the best tree from it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from specframe.cli.main import add_prompts_arguments, add_recipe_arguments, as_path

    add_recipe_arguments(parser)
    add_prompts_arguments(parser)
    parser.add_argument(
        "--context",
        type=int,
        default=0,
        metavar="N",
        help="lengthen each prompt to at least N tokens by other prompts before it",
    )
    parser.add_argument("--depth", type=int, default=4, metavar="N", help="levels to measure (default: 4)")
    parser.add_argument("--width", type=int, default=8, metavar="N", help="choices to measure per node (default: 8)")
    parser.add_argument(
        "--draw",
        choices=("top", "iid", "without_replacement"),
        default="top",
        help="how the choices are drawn (default: top)",
    )
    parser.add_argument(
        "--sizes",
        type=int,
        nargs="+",
        default=[1, 4, 8, 16, 32],
        metavar="N",
        help="sizes of trees to time, in nodes, root included; 1 is plain decoding (default: 1 4 8 16 32)",
    )
    parser.add_argument(
        "--check",
        type=as_path,
        nargs="?",
        const=True,
        metavar="FILE",
        help="decode these prompts (default: those measured) with the fastest tree, to see if its forecast holds",
    )
    parser.add_argument(
        "--precisions",
        action="store_true",
        help="time the target's forward passes in float32, bfloat16, int8 and int4, with kernels, on fewer threads "
        "and, with target.compile=true, compiled; recommend one of them and its tree",
    )
    parser.add_argument(
        "--skip",
        action="store_true",
        help="search for layers that the target can skip when it drafts for itself; forecast what drafter `self` gains",
    )
    parser.add_argument(
        "--json", action="store_true", help="print what --out would write, as one JSON object, instead of the table"
    )
    parser.add_argument(
        "--out",
        type=as_path,
        metavar="FILE",
        help="where to write the profile, which the trees `sequoia`, `adaptive`, `goodput` and `dynamic` read",
    )


def execute(options: argparse.Namespace) -> int:
    """Prints the table and the best trees; writes the table when asked to."""
    from specframe.cli.main import prompts_to_measure, read_plan
    from specframe.files.folders import check_file
    from specframe.files.prompts import read_prompts
    from specframe.kernel.errors import InputError
    from specframe.kernel.types import Draw

    valid = read_plan(options)
    prompts = prompts_to_measure(options, valid)
    if min(options.depth, options.width) < 1:
        raise InputError("--depth and --width must be at least 1")
    if min(options.sizes) < 1:
        raise InputError(f"a tree has a node at least: --sizes {min(options.sizes)} times none")
    if options.json and (options.precisions or options.check is not None):
        raise InputError("--json prints the measured tables alone: leave --check and --precisions out")

    if options.out is not None:
        check_file(options.out, "give --out another place")
    if options.skip:
        if options.out is not None or options.precisions or options.check is not None or options.context:
            raise InputError("--skip measures the target alone: leave --out, --check, --context and --precisions out")
        return search_layers(valid, prompts, as_json=options.json)

    from specframe.cli.render.columns import fitted, terminal_columns
    from specframe.cli.render.profile import show_check, show_table, show_trees
    from specframe.decoding.pipeline import Pipeline
    from specframe.inspect.profile import lengthen, profile

    draw = Draw[options.draw.upper()]
    pipeline = Pipeline.build(valid)
    if options.context:
        prompts = lengthen(pipeline, prompts, options.context)
    others = read_prompts(options.check, options.limit) if isinstance(options.check, Path) else prompts
    found = profile(pipeline, prompts, depth=options.depth, width=options.width, draw=draw, sizes=options.sizes)
    if options.json:
        print(json.dumps(found.as_data()), flush=True)
        if options.out is not None:
            found.write(options.out)
        return 0
    columns = terminal_columns()
    print("\n".join([*show_table(found, columns), "", *show_trees(found, options.depth, columns)]))
    if options.precisions:
        print("\n".join(["", *fitted(show_precisions(options, found), columns)]))
    choice = found.fastest(options.depth)
    if options.check is not None:
        from dataclasses import replace

        from specframe.components.trees.fixed import Fixed
        from specframe.components.trees.shape import dotted
        from specframe.inspect.forecast import measure_tau

        tree = Fixed(paths=[dotted(path) for path in choice.shape.paths], draw=draw)
        again = replace(pipeline, run=replace(pipeline.run, seed=pipeline.run.seed + 1))
        fastest = measure_tau(again.with_parts(tree=tree), others)
        own = measure_tau(again, others, found.calibration)
        print("\n".join(["", *fitted(show_check(choice, fastest, own), columns)]))
    if options.out is not None:
        found.write(options.out)
        size = f"nodes: {choice.shape.nodes - 1}, depth: {choice.shape.depth}"
        print(f"\ntree: {{use: dynamic, calibration: {options.out}}}")
        print(f"tree: {{use: sequoia, acceptance: {options.out}, {size}, draw: {options.draw}}}")
    return 0


def search_layers(plan: Plan, prompts: Sequence[Prompt], *, as_json: bool) -> int:
    """Prints what drafts of the target without some of its layers are worth, and the recipe lines of the best."""
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


def show_precisions(options: argparse.Namespace, found: Profile) -> list[str]:
    """The forecast for each precision of the target as lines of text, the fastest marked, and its section."""
    from specframe.cli.main import read_plan
    from specframe.decoding.costs import time_forwards
    from specframe.files.text import counted
    from specframe.inspect.precisions import PRECISIONS, fastest_tree, section, time_threads
    from specframe.kernel.errors import SpecframeError

    lines = [f"{'target':20}  ms plain  nodes  levels    tau   ms a cycle  tokens/s   (forecast from forward passes)"]
    compiles = read_plan(options).parts["target"].options.get("compile", False)
    speeds: dict[str, float] = {}
    fastest: Any = None
    size = 1
    for name, values in PRECISIONS.items():
        if values["compile"] == "true" and not compiles:  # it takes minutes
            continue
        overrides = [*options.overrides, *(f"target.{key}={value}" for key, value in values.items())]
        try:
            target = read_plan(argparse.Namespace(**{**vars(options), "overrides": overrides})).parts["target"].build()
            forwards = time_forwards(target, {1, *options.sizes})
        except SpecframeError as error:
            lines.append(f"{name:20}  {error}")
            continue
        tree = fastest_tree(found, forwards, options.depth)
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
