"""`specframe doctor RECIPE`: checks whether a drafter reads its target as in its training."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specframe.cli.arguments import json_option, limit_option, prompts_option, prompts_to_measure, recipe_command

if TYPE_CHECKING:
    from specframe.inspect.doctor import Diagnosis
    from specframe.recipes.build import Plan


@recipe_command
@prompts_option
@limit_option
@json_option("print the diagnosis as one JSON object")
def doctor(plan: Plan, prompts: Path | None, limit: int | None, as_json: bool) -> int:
    """Check that a drafter reads its target as in its training, and find the mistake if it does not.

    The exit status is 1 if something is wrong.
    """
    from specframe.cli.render import print_lines
    from specframe.kernel.errors import InputError

    if limit is not None and prompts is None:
        raise InputError("--limit needs --prompts FILE; the recipe's own prompts are all decoded")
    texts = prompts_to_measure(prompts, limit, plan)

    if not any(map(_is_trained, [drafter := plan.parts["drafter"], *drafter.options.values()])):
        raise InputError(
            f"the drafter {drafter.entry.name} is not trained, so there is nothing to diagnose; `specframe run` shows "
            "its tau"
        )
    from specframe.decoding.pipeline import Pipeline
    from specframe.inspect.doctor import examine, require_draft

    pipeline = Pipeline.build(plan)
    require_draft(pipeline)
    found = examine(pipeline, texts)
    if as_json:
        print(json.dumps(asdict(found) | {"finding": found.finding, "doubt": found.doubt}))
    else:
        print_lines(show(found))
    return 1 if found.finding else 0


def _is_trained(value: Any) -> bool:
    """Returns whether an option is a part with weights."""
    component = getattr(value, "component", None)
    return hasattr(component, "save") or bool({"weights", "model"} & getattr(value, "options", {}).keys())


def show(found: Diagnosis) -> list[str]:
    """Returns the diagnosis as lines."""
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
    sound = "nothing wrong was found: the drafter reads what it was trained on"
    return [*lines, "", found.finding or found.doubt or sound]


def _shares(shares: list[float]) -> str:
    """Formats rounded shares."""
    return " ".join(f"{share:.2f}" for share in shares)
