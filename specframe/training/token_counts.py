"""Counts of the tokens that a target emits: `specframe train RECIPE --count-tokens counts.json`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specframe.kernel.errors import InputError
from specframe.training import documents
from specframe.training.encoding import encode
from specframe.training.settings import TrainSettings, settings_of

if TYPE_CHECKING:
    from specframe.recipes.build import Plan


def count(settings: TrainSettings, tokenizer: Any) -> Counter[int]:
    """Counts the occurrences of each token in answers, over all documents of `train.data`."""
    counted: Counter[int] = Counter()
    for document in documents.read(settings.data):
        for ids, answer in encode(document, tokenizer, settings.chat_template_kwargs or {}):
            counted.update(token for token, counts in zip(ids, answer, strict=True) if counts)
    return counted


def data_of(plan: Plan) -> tuple[TrainSettings, Any]:
    """The recipe's train section and the tokenizer of its target, which is not loaded.

    Raises InputError for a recipe without either.
    """
    from specframe.components.targets.loading import locate
    from specframe.components.targets.tokenizer import TokenizerSource

    settings, target = settings_of(plan), plan.parts["target"].options
    if settings is None or "model" not in target:
        raise InputError(f"{plan.recipe.path}: this needs a train section, and the target hf with a model")
    tokenizer = TokenizerSource(locate(target["model"]), target.get("revision")).get()
    if tokenizer is None:
        raise InputError(f"{plan.recipe.path}: the target {target['model']} has no tokenizer")
    return settings, tokenizer


def write_counts(plan: Plan, path: Path) -> Counter[int]:
    """Writes the counts of a recipe's training data in the format of the head `trimmed`, and returns them.

    Raises InputError for a recipe without training data or tokenizer, and for a file that cannot be written.
    """
    settings, tokenizer = data_of(plan)
    counted = count(settings, tokenizer)
    try:
        path.write_text(json.dumps({str(token): n for token, n in counted.most_common()}), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    return counted
