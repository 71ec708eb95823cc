"""The reader of GGUF files, as the core asks for it."""

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
        """Raises InputError for a file that is no GGUF file, or cut short."""
        self._file = GGUFFile.read(path)
        self._architecture = ARCHITECTURES.get(self._file.architecture)

    @property
    def has_template(self) -> bool:
        """True if the file holds a chat template."""
        return TEMPLATE in self._file.metadata

    def config(self) -> PreTrainedConfig | None:
        """The transformers config; None for an architecture whose weights are not read here.

        One warning names the keys of the metadata that are not read. Raises InputError for metadata that is not enough,
        or not supported, and for a file in parts that is not read here.
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
        """Checks a config that transformers made of the file, and puts the file's end tokens into it.

        Raises InputError for metadata that it does not follow.
        """
        require_followed(self._file, config)

    def stored(self, config: PreTrainedConfig) -> StoredModel | None:
        """The tensors, for a model of this config; None where the file is of another architecture."""
        known = self._architecture
        return StoredModel(self._file, config) if known and known.model_type == config.model_type else None

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """The tokenizer, or None in a file without. Raises InputError for one that cannot be read."""
        return read_tokenizer(self._file)

    def require_template(self) -> None:
        """Raises InputError for a chat template that cannot be parsed."""
        require_template(self._file)
