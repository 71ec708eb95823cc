"""`specframe show RECIPE`: what happened while decoding, cycle by cycle, in the terminal and as a page."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specframe.kernel.errors import InputError

SUMMARY = "draw what happened while decoding: draft trees, verdicts, and where each token came from"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from specframe.cli.main import add_recipe_arguments

    add_recipe_arguments(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="decode this (default: the recipe's first prompt)")
    parser.add_argument("--cycles", type=int, default=4, metavar="N", help="trees to print (default: 4)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with every cycle's tree")
    parser.add_argument("--json", action="store_true", help="print the whole trace as one JSON object instead")


def execute(options: argparse.Namespace) -> int:
    """Decodes one prompt, then prints trees, text and figures, and writes the page."""
    from specframe.kernel.build import plan
    from specframe.kernel.plugins import discover
    from specframe.kernel.recipe import Recipe

    if options.cycles < 0:
        raise InputError(f"--cycles {options.cycles} is negative; 0 prints no trees")
    recipe = Recipe.read(options.recipe, options.overrides)
    valid = plan(recipe, discover(), local_code=not options.no_local_code)
    prompts = valid.settings["run"].prompts if options.prompt is None else [options.prompt]
    if not prompts:
        raise InputError("there is nothing to decode: give --prompt TEXT, or put run.prompts into the recipe")
    if options.html is not None:
        check_writable(options.html)  # before minutes of loading and decoding, not after

    from specframe.cli.trees import print_trace
    from specframe.decoding.pipeline import Pipeline
    from specframe.inspect.page.document import render
    from specframe.inspect.trace.collect import trace

    found = trace(Pipeline.build(valid), prompts[0])
    if options.html is not None:
        options.html.write_text(render(found), encoding="utf-8")
    if options.json:
        print(json.dumps(found.as_dict()))
    else:
        print_trace(found, cycles=options.cycles, page=options.html)
    return 0


def check_writable(path: Path) -> None:
    """Raises InputError for a place that a page cannot be written to; leaves a file there as it is."""
    is_new = not path.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("a", encoding="utf-8").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}; give --html another place") from error
