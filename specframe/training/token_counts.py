"""Counts the tokens that a target emits: `python -m specframe.training.token_counts RECIPE counts.json`."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specframe.kernel.errors import InputError, SpecframeError
from specframe.training import documents
from specframe.training.encoding import encode


def count(sources: Iterable[str], tokenizer: Any) -> Counter[int]:
    """Counts the occurrences of each token in answers, over the documents of all sources (see `train.data`)."""
    counted: Counter[int] = Counter()
    for document in documents.read(sources):
        ids, answer = encode(document, tokenizer)
        counted.update(token for token, counts in zip(ids, answer, strict=True) if counts)
    return counted


def main(arguments: list[str] | None = None) -> int:
    """The command: 0, or 2 after a message on stderr."""
    parser = argparse.ArgumentParser(prog="python -m specframe.training.token_counts", description=__doc__)
    parser.add_argument("recipe", type=Path, help="its train.data is counted with its target's tokenizer")
    parser.add_argument("out", type=Path, help="the JSON file, for the head trimmed")
    options = parser.parse_args(arguments)
    try:
        counted = _count(options.recipe)
        options.out.write_text(json.dumps({str(token): n for token, n in counted.most_common()}), encoding="utf-8")
    except (SpecframeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{counted.total():,} tokens, {len(counted):,} different ones, in {options.out}")
    return 0


def _count(recipe: Path) -> Counter[int]:
    """The counts of a recipe's training data. Raises InputError where it has none, or no tokenizer."""
    from specframe.components.targets.loading import TokenizerSource, locate
    from specframe.recipes.build import plan
    from specframe.recipes.discovery import discover
    from specframe.recipes.recipe import Recipe

    valid = plan(Recipe.read(recipe), discover())
    settings, target = valid.settings.get("train"), valid.parts["target"].options
    if settings is None or "model" not in target:
        raise InputError(f"{recipe}: counting needs a train section, and the target hf with a model")
    tokenizer = TokenizerSource(locate(target["model"]), target.get("revision")).get()
    if tokenizer is None:
        raise InputError(f"{recipe}: the target {target['model']} has no tokenizer")
    return count(settings.data, tokenizer)


if __name__ == "__main__":
    sys.exit(main())
