"""`specframe store build FILES --recipe R`: texts that a drafter copies from, tokenized and indexed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from specframe.files.text import counted
from specframe.kernel.interfaces import text_of

SUMMARY = "build a store of texts for drafters that copy from it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("action", choices=("build",), help="`build` tokenizes and indexes texts")
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="a text file, a JSONL file, or a folder of them"
    )
    parser.add_argument("--recipe", required=True, metavar="RECIPE", help="the recipe whose target tokenizes the texts")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where to write the store (default: `path` of the recipe's store)"
    )
    parser.add_argument("--json", action="store_true", help="print folder, tokens and texts as one JSON object")
    parser.set_defaults(overrides=[])  # KEY=VALUE may follow


def execute(options: argparse.Namespace) -> int:
    """Writes the store and prints its size."""
    from specframe.components.stores.corpus import build
    from specframe.components.stores.documents import read_texts
    from specframe.kernel.build import Part, plan
    from specframe.kernel.discovery import discover
    from specframe.kernel.errors import InputError
    from specframe.kernel.recipe import Recipe

    recipe = Recipe.read(options.recipe, options.overrides)
    parts = plan(recipe, discover()).parts
    store = parts["drafter"].options.get("store")
    folder = options.out or (store.options.get("path") if isinstance(store, Part) else None)
    if folder is None:
        raise InputError(f"{options.recipe} names no store with a path; give --out FOLDER")
    target = parts["target"].build()
    tokenizer = text_of(target).tokenizer
    if tokenizer is None:
        raise InputError(f"the target of {options.recipe} has no tokenizer to read texts with")
    texts = [
        tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        for text in read_texts(path.expanduser() for path in options.files)
    ]
    tokens = build(folder.expanduser(), texts, target)
    if options.json:
        print(json.dumps({"folder": str(folder), "tokens": tokens - len(texts), "texts": len(texts)}))
    else:
        print(f"{folder}: {counted(tokens - len(texts), 'token')} of {counted(len(texts), 'text')}")
    return 0
