"""Tokenizer of a model, loaded on first use."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specframe.components.targets.source import ModelSource, read_gguf, take_texts
from specframe.kernel.errors import InputError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model")


class TokenizerSource:
    """A tokenizer, or its model's location, from which it is loaded on first use."""

    def __init__(
        self,
        source: PreTrainedTokenizerBase | str | Path | None,
        revision: str | None = None,
        name: str | None = None,
    ) -> None:
        self._source = source
        self.name = name  # the requested name of the model
        self._revision = revision
        self.checkpoint = (source, revision) if isinstance(source, str | Path) else None
        """Location of the model, and its revision; None for a model in memory."""

    def get(self) -> PreTrainedTokenizerBase | None:
        """Returns the tokenizer, or None if there is none."""
        if isinstance(self._source, str | Path):
            self._source = self._load(self._source)
        return self._source

    def _load(self, place: str | Path) -> PreTrainedTokenizerBase | None:
        source = ModelSource.of(place, self._revision)
        if source.is_gguf:
            stored = read_gguf(source.file).tokenizer()
            if stored is not None:
                take_texts(stored)
            return stored
        if isinstance(place, Path) and place.is_dir() and not any((place / name).exists() for name in TOKENIZER_FILES):
            return None
        try:
            if isinstance(place, Path) and has_fast_tokenizer(place):
                from transformers import PreTrainedTokenizerFast

                tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(place)
            else:
                from transformers import AutoTokenizer  # a slow import

                tokenizer = AutoTokenizer.from_pretrained(source.name, **source.options, trust_remote_code=False)
        except (OSError, ValueError) as error:
            raise InputError(f"the tokenizer of {place} cannot be loaded: {first_line(error)}") from error
        take_texts(tokenizer)
        return tokenizer


def has_fast_tokenizer(folder: Path) -> bool:
    """Returns whether `AutoTokenizer` would use transformers' fast class for a folder: one of a Llama that names it."""
    from transformers import PreTrainedTokenizerFast

    config, settings = (read_object(folder / name) for name in ("config.json", "tokenizer_config.json"))
    names = ("PreTrainedTokenizerFast", PreTrainedTokenizerFast.__name__)
    named = settings.get("tokenizer_class") in names and "auto_map" not in settings
    return named and config.get("model_type") == "llama" and (folder / "tokenizer.json").is_file()


def read_object(file: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; empty if it cannot be read, so that transformers reports the reason."""
    with suppress(OSError, ValueError):
        found = json.loads(file.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}
