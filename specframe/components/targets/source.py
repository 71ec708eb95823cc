"""Sources of models for transformers: a folder, a Hub name at a revision, or a GGUF file; chat templates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from specframe.kernel.errors import InputError, first_line
from specframe.neural.weights.locate import GGUF, find_place
from specframe.recipes.discovery import discover

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


@dataclass(frozen=True)
class ModelSource:
    """The first argument of transformers' `from_pretrained` functions, and the options that go with it."""

    name: str | Path
    options: dict[str, Any]
    """Options for the config, the tokenizer and the model."""
    unpacking: dict[str, Any] = field(default_factory=dict)
    """Options for the model alone."""

    @classmethod
    def of(cls, place: str | Path, revision: str | None = None) -> ModelSource:
        """Creates the source of a place returned by `find_place`."""
        if not isinstance(place, Path) or place.suffix != GGUF:
            return cls(place, {"revision": revision or "main"})
        return cls(place.parent, {"gguf_file": place.name}, _unpacking())

    @property
    def is_gguf(self) -> bool:
        """True if it is a GGUF file."""
        return "gguf_file" in self.options

    @property
    def file(self) -> Path:
        """The GGUF file."""
        return Path(self.name) / self.options["gguf_file"]


def _unpacking() -> dict[str, Any]:
    """Returns the options that make transformers unpack a GGUF file's blocks; empty for releases that always do."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


@contextmanager
def quiet() -> Iterator[None]:
    """Turns off transformers' progress bars and the Hub's retry messages inside the context."""
    from huggingface_hub.utils import logging as hub
    from transformers.utils import logging

    shown, verbosity = logging.is_progress_bar_enabled(), hub.get_verbosity()
    logging.disable_progress_bar()
    hub.set_verbosity_error()
    try:
        yield
    finally:
        hub.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def read_config(model: str, source: ModelSource) -> Any:
    """Reads the transformers config of a GGUF file.

    Raises InputError for anything but a complete GGUF file, for an architecture that transformers cannot read, and if
    the package gguf is missing.
    """
    from transformers import AutoConfig

    require_gguf(model)
    try:
        with quiet():
            return AutoConfig.from_pretrained(source.name, **source.options, trust_remote_code=False)
    except Exception as error:  # a damaged header can lead to any error
        hint = "" if "architecture" in str(error) else "; is the file whole?"
        raise InputError(f"{model} cannot be read as GGUF: {first_line(error)}{hint}") from error


def require_gguf(model: str) -> None:
    """Raises InputError if the package that reads GGUF files is not installed."""
    if find_spec("gguf") is None:
        raise InputError(f'{model} is of an architecture that needs the package gguf: pip install "specframe[gguf]"')


def make_plain(model: Any) -> nn.Module:
    """Removes the quantization mark from a model whose weights were unpacked when it was loaded, and returns it."""
    for mark in ("hf_quantizer", "quantization_method", "is_quantized"):
        vars(model).pop(mark, None)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    plain: nn.Module = model
    return plain


class StoredWeights(Protocol):
    """The tensors of a GGUF file, by their names in the transformers model."""

    def require_fit(self, model_class: type[nn.Module]) -> None:
        """Raises InputError unless the file has exactly the tensors of a model of this class, in its shapes."""

    def weights(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """The model's weights, unpacked to a dtype, by name."""

    def find(self, name: str, weight: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Returns the blocks of a matrix, as `PackedBlocks` has them; None if the file has none with these bits."""


class GGUFModel(Protocol):
    """A GGUF file whose header has been read: the extension `gguf`."""

    @property
    def has_template(self) -> bool:
        """True if the file contains a chat template."""

    def config(self) -> PreTrainedConfig | None:
        """Returns the config of its model; None for an architecture that only transformers may be able to read."""

    def require_followed(self, config: PreTrainedConfig) -> None:
        """Checks a config that transformers derived from the file; raises InputError for metadata that it ignores."""

    def stored(self, config: PreTrainedConfig) -> StoredWeights | None:
        """Returns its tensors for a model of this config; None if they belong to another model."""

    def tokenizer(self) -> PreTrainedTokenizerBase | None:
        """Returns its tokenizer, or None if it has none."""

    def require_template(self) -> None:
        """Raises InputError for a chat template that cannot be parsed."""


def read_gguf(file: Path) -> GGUFModel:
    """Reads a file with specframe-gguf.

    Raises InputError for a file that is not GGUF or is truncated, and PluginError without the package.
    """
    return _reader(file.name)(file)


@cache
def _reader(user: str) -> Callable[[Path], GGUFModel]:
    reader: Callable[[Path], GGUFModel] = discover().extension("gguf", user, "specframe-gguf")
    return reader


def sole_gguf(place: Path) -> Path | None:
    """Returns the GGUF file that a place is, or that is the only model in a folder; None otherwise."""
    if place.suffix == GGUF and place.is_file():
        return place
    return None if (place / "config.json").exists() else gguf_file(place)


def gguf_file(place: str | Path) -> Path | None:
    """Returns the GGUF file that a place, as `locate` gives it, is or contains; None if it contains none or several."""
    if not isinstance(place, Path):
        return None
    files = [place] if place.suffix == GGUF else gguf_files(place)
    return files[0] if len(files) == 1 else None


PART = re.compile(rf"-\d{{5}}(?=-of-\d{{5}}{re.escape(GGUF)}$)")
"""Matches the number of a part of a GGUF file in its name."""


def gguf_files(folder: Path) -> list[Path]:
    """Returns the GGUF files in a folder; of a file in parts, the first existing part."""
    files = sorted(folder.glob(f"*{GGUF}"), reverse=True)
    return sorted({PART.sub("", path.name): path for path in files}.values())


def find_template(model: str) -> bool | None:
    """Returns whether a folder or GGUF file has a chat template; None for another name, or without a model there."""
    place = find_place(model)
    if not isinstance(place, Path):
        return None
    if (file := sole_gguf(place)) is not None:
        return read_gguf(file).has_template
    if not (place / "config.json").exists():
        return None
    settings = place / "tokenizer_config.json"
    try:
        stored = '"chat_template"' in settings.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        stored = False
    return stored or (place / "chat_template.jinja").exists() or (place / "chat_template.json").exists()


WORD = "specframe"
LISTED = (
    "{%- set all = namespace(messages=[]) -%}"
    "{%- for message in messages -%}"
    "{%- set parts = [{'type': 'text', 'text': message['content']}] -%}"
    "{%- set all.messages = all.messages + "
    "[dict(message, content=parts) if message['content'] is string else message] -%}"
    "{%- endfor -%}"
    "{%- set messages = all.messages -%}"
)
"""Preamble that converts texts to lists, for a template that reads only lists."""


def take_texts(tokenizer: Any) -> None:
    """Makes a chat template that reads only lists of parts accept plain texts, too.

    Templates that already accept texts, and those for which this does not help, are unchanged.
    """
    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, str) or _shows_texts(tokenizer):
        return
    tokenizer.chat_template = LISTED + template
    if not _shows_texts(tokenizer):
        tokenizer.chat_template = template


def _shows_texts(tokenizer: Any) -> bool:
    try:
        return WORD in tokenizer.apply_chat_template([{"role": "user", "content": WORD}], tokenize=False)
    except Exception:  # a template may raise any error
        return False
