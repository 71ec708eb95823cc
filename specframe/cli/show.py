"""`specframe show RECIPE`: shows the decoding cycle by cycle, in the terminal and as a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from specframe.cli.arguments import PATH, json_option, recipe_command
from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from specframe.inspect.recorder import Trace
    from specframe.recipes.build import Plan


@recipe_command
@click.option("--prompt", metavar="TEXT", help="decode this prompt in place of the recipe's first")
@click.option("--cycles", default=4, metavar="N", help="print the trees of the first N cycles")
@click.option("--html", type=PATH, metavar="FILE", help="write a page with every cycle's tree")
@json_option("print the whole trace as one JSON object instead")
def show(plan: Plan, prompt: str | None, cycles: int, html: Path | None, as_json: bool) -> int:
    """Draw the draft trees, verdicts and tokens of every cycle of a decoding."""
    from specframe.files.folders import check_file

    if cycles < 0:
        raise InputError(f"--cycles {cycles} is negative; 0 prints no trees")
    prompts: list[str | list[int]] = plan.settings["run"].prompts if prompt is None else [prompt]
    if not prompts:
        raise InputError("there is nothing to decode: give --prompt TEXT, or put run.prompts into the recipe")
    if html is not None:  # checked before minutes of loading and decoding
        check_file(html, "give --html another place")
        render = load_renderer()

    from specframe.cli.render.trees import print_trace
    from specframe.decoding.pipeline import Pipeline
    from specframe.files.provenance import write_text
    from specframe.inspect.trace import trace

    found = trace(Pipeline.build(plan), prompts[:1])
    if html is not None:
        write_text(html, render(found))
    if as_json:
        print(json.dumps(found.as_dict()))
    else:
        print_trace(found, cycles=cycles, page=html)
    return 0


def load_renderer() -> Callable[[Trace], str]:
    """Returns specframe-report's function that renders a trace as a page. Raises PluginError without the package."""
    from specframe.recipes.discovery import discover

    render: Callable[[Trace], str] = discover().extension("trace-page", "specframe show --html", "specframe-report")
    return render
