"""`specframe show RECIPE`: what happened while decoding, cycle by cycle, in the terminal and as a page."""

from __future__ import annotations

import argparse
import json

from specframe.kernel.errors import InputError

SUMMARY = "draw what happened while decoding: draft trees, verdicts, and where each token came from"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from specframe.cli.main import add_recipe_arguments, as_path

    add_recipe_arguments(parser)
    parser.add_argument("--prompt", metavar="TEXT", help="decode this prompt (default: the recipe's first)")
    parser.add_argument(
        "--cycles", type=int, default=4, metavar="N", help="print the trees of the first N cycles (default: 4)"
    )
    parser.add_argument("--html", type=as_path, metavar="FILE", help="write a page with every cycle's tree")
    parser.add_argument("--json", action="store_true", help="print the whole trace as one JSON object instead")


def execute(options: argparse.Namespace) -> int:
    """Decodes one prompt, then prints trees, text and figures, and writes the page."""
    from specframe.cli.main import read_plan
    from specframe.files.folders import check_file

    if options.cycles < 0:
        raise InputError(f"--cycles {options.cycles} is negative; 0 prints no trees")
    valid = read_plan(options)
    prompts = valid.settings["run"].prompts if options.prompt is None else [options.prompt]
    if not prompts:
        raise InputError("there is nothing to decode: give --prompt TEXT, or put run.prompts into the recipe")
    if options.html is not None:
        check_file(options.html, "give --html another place")  # before minutes of loading and decoding, not after

    from specframe.cli.render.trees import print_trace
    from specframe.decoding.pipeline import Pipeline
    from specframe.files.provenance import write_text
    from specframe.inspect.page import render
    from specframe.inspect.trace import trace

    found = trace(Pipeline.build(valid), prompts[0])
    if options.html is not None:
        write_text(options.html, render(found))
    if options.json:
        print(json.dumps(found.as_dict()))
    else:
        print_trace(found, cycles=options.cycles, page=options.html)
    return 0
