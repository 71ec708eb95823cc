"""The reader of GGUF files, with the interface that the core uses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specframe import InputError
from specframe_gguf.foreign import require_followed
from specframe_gguf.header import GGUFFile
from specframe_gguf.model import ARCHITECTURES, StoredModel, read_config
from specframe_gguf.tokenizer import TEMPLATE, read_tokenizer, require_template

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


class OpenedGGUF:
    """A GGUF file whose header was read."""

    def __init__(self, path: Path) -> None:
        """Reads the header. Raises InputError for a file that is not GGUF or is truncated."""
        self._file = GGUFFile.read(path)
        self._architecture = ARCHITECTURES.get(self._file.architecture)

    @property
    def has_template(self) -> bool:
        """True if the file contains a chat template."""
        return TEMPLATE in self._file.metadata

    def config(self) -> PreTrainedConfig | None:
        """Returns the transformers config; None for an architecture whose weights are not read here.

        Unused metadata keys are listed in one warning. Raises InputError for incomplete or unsupported metadata, and
        for a file in parts that is not read here.
        """
        if self._architecture is not None:
            return read_config(self._file)
        if (count := self._file.metadata.get("split.count", 0)) > 1:
            raise InputError(
                f"{self._file.path} is in {count} parts, and transformers, which reads files of the architecture "
                f"{self._file.architecture}, takes whole ones: join them by `llama-gguf-split --merge`"
            )
        return None

    def require_followed(self, config: PreTrainedConfig) -> None:
        """Checks a config that transformers made of the file, and sets the file's end tokens in it.

        Raises InputError for metadata that the config does not follow.
        """
        require_followed(self._file, config)

    def stored(self, config: PreTrainedConfig) -> StoredModel | None:
        """Returns the tensors for a model of this config; None if the file has another architecture."""
        known = self._architecture
        return StoredModel(self._file, config) if known and known.model_type == config.model_type else None

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Returns the tokenizer, or None for a file without one. Raises InputError for one that cannot be read."""
        return read_tokenizer(self._file)

    def require_template(self) -> None:
        """Raises InputError for a chat template that cannot be parsed."""
        require_template(self._file)
