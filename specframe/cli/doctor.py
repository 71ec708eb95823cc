"""`specframe doctor RECIPE`: whether a drafter reads its target as it was trained to."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specframe.inspect.doctor import Diagnosis

SUMMARY = "check that a drafter reads its target as it was trained to, and find the mistake if it does not"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from specframe.cli.main import add_prompts_arguments, add_recipe_arguments

    add_recipe_arguments(parser)
    add_prompts_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the diagnosis as one JSON object")


def execute(options: argparse.Namespace) -> int:
    """Prints the diagnosis; 1 if something is wrong."""
    from specframe.cli.main import prompts_to_measure, read_plan
    from specframe.cli.render.columns import fitted, terminal_columns
    from specframe.kernel.errors import InputError

    if options.limit is not None and options.prompts is None:
        raise InputError("--limit needs --prompts FILE; the recipe's own prompts are all decoded")
    valid = read_plan(options)
    prompts = prompts_to_measure(options, valid)

    from specframe.decoding.pipeline import Pipeline
    from specframe.inspect.doctor import examine, require_draft

    pipeline = Pipeline.build(valid)
    require_draft(pipeline)
    found = examine(pipeline, prompts)
    if options.json:
        print(json.dumps(asdict(found) | {"finding": found.finding}))
    else:
        print("\n".join(fitted(show(found), terminal_columns())))
    return 1 if found.finding else 0


def show(found: Diagnosis) -> list[str]:
    """The diagnosis in lines."""
    lines = [
        f"tau {found.tau:.2f}: tokens per forward pass of the target, the bonus token included",
        f"accepted by depth {_shares(found.alpha)}; "
        f"the most frequent token alone would be right {found.chance:.2f} of the time",
    ]
    if found.readings:
        width = max(len(reading.name) for reading in found.readings)
        depths = len(found.readings[0].depths)
        by = "" if depths < 2 else f" at depth {', '.join(map(str, range(1, depths + 1)))}"
        lines += ["", f"first choice equal to the target's{by}, of {found.positions} positions:"]
        for reading in found.readings:
            right = " ".join(f"{share:.3f}" for share in reading.depths)
            lines.append(f"  {reading.name:{width}}  {right}  {', '.join(reading.taps)}")
        lines.append("in the cycles of a chain alone " + _shares(found.chain))
        if found.recorded:
            lines.append("as its training recorded it    " + _shares(found.recorded))
    return [*lines, "", found.finding or "nothing wrong was found: the drafter reads what it was trained on"]


def _shares(shares: list[float]) -> str:
    """Shares, rounded."""
    return " ".join(f"{share:.2f}" for share in shares)
