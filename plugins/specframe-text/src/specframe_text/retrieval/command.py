"""`specframe store build FILES --recipe R`: tokenizes and indexes texts for drafters that copy from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from specframe import InputError
from specframe.plugin import UserPath, complete_recipe, counted, read_plan, text_of


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
    "--out", type=UserPath(), metavar="FOLDER", help="where to write the store (default: `path` of the recipe's store)"
)
@click.option("--json", "as_json", is_flag=True, help="print folder, tokens and texts as one JSON object")
def store(action: str, files: Sequence[str], recipe: str, out: Path | None, as_json: bool) -> int:
    """Build a store of texts for drafters that copy from it."""
    from specframe_text.retrieval.corpus import build
    from specframe_text.retrieval.documents import read_texts

    overrides = [word for word in files if "=" in word and not Path(word).is_file()]
    parts = read_plan(recipe, overrides).parts
    described = parts["drafter"].options.get("store")
    folder = out or getattr(described, "options", {}).get("path")
    if folder is None:
        raise InputError(f"{recipe} names no store with a path; give --out FOLDER")
    target = parts["target"].build()
    tokenizer = text_of(target).tokenizer
    if tokenizer is None:
        raise InputError(f"the target of {recipe} has no tokenizer to read texts with")
    texts = [
        tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        for text in read_texts(Path(word).expanduser() for word in files if word not in overrides)
    ]
    tokens = build(folder.expanduser(), texts, target)
    if as_json:
        print(json.dumps({"folder": str(folder), "tokens": tokens - len(texts), "texts": len(texts)}))
    else:
        print(f"{folder}: {counted(tokens - len(texts), 'token')} of {counted(len(texts), 'text')}")
    return 0
