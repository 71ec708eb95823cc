"""`specframe store build FILES --recipe R`: texts that a drafter copies from, tokenized and indexed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from specframe.cli.arguments import PATH, json_option, split_overrides
from specframe.cli.candidates import complete_recipe
from specframe.files.text import counted
from specframe.kernel.interfaces import text_of


@click.command()
@click.argument("action", type=click.Choice(["build"]), help="`build` tokenizes and indexes texts")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE...",
    help="a text file, a JSONL file, or a folder of them; or KEY=VALUE, which replaces a value of the recipe",
)
@click.option(
    "--recipe",
    required=True,
    metavar="RECIPE",
    help="the recipe whose target tokenizes the texts",
    shell_complete=complete_recipe,
)
@click.option(
    "--out", type=PATH, metavar="FOLDER", help="where to write the store (default: `path` of the recipe's store)"
)
@json_option("print folder, tokens and texts as one JSON object")
def store(action: str, files: Sequence[str], recipe: str, out: Path | None, as_json: bool) -> int:
    """Build a store of texts for drafters that copy from it."""
    from specframe.components.stores.corpus import build
    from specframe.components.stores.documents import read_texts
    from specframe.kernel.build import Part, plan
    from specframe.kernel.discovery import discover
    from specframe.kernel.errors import InputError
    from specframe.kernel.recipe import Recipe

    words, overrides = split_overrides(files)
    parts = plan(Recipe.read(recipe, overrides), discover()).parts
    described = parts["drafter"].options.get("store")
    folder = out or (described.options.get("path") if isinstance(described, Part) else None)
    if folder is None:
        raise InputError(f"{recipe} names no store with a path; give --out FOLDER")
    target = parts["target"].build()
    tokenizer = text_of(target).tokenizer
    if tokenizer is None:
        raise InputError(f"the target of {recipe} has no tokenizer to read texts with")
    texts = [
        tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        for text in read_texts(Path(word).expanduser() for word in words)
    ]
    tokens = build(folder.expanduser(), texts, target)
    if as_json:
        print(json.dumps({"folder": str(folder), "tokens": tokens - len(texts), "texts": len(texts)}))
    else:
        print(f"{folder}: {counted(tokens - len(texts), 'token')} of {counted(len(texts), 'text')}")
    return 0
