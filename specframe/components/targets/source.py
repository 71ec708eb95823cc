"""What transformers reads a model from: a folder or a Hub name at a revision, or a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specframe.neural.state.places import GGUF


@dataclass(frozen=True)
class Source:
    """The first argument of transformers' `from_pretrained` functions, and the options that go with it."""

    name: str | Path
    options: dict[str, Any]
    """For the config, the tokenizer and the model."""
    unpacking: dict[str, Any] = field(default_factory=dict)
    """For the model alone."""

    @classmethod
    def of(cls, place: str | Path, revision: str | None = None) -> Source:
        """The source of a place, as `find_place` gives it."""
        if not isinstance(place, Path) or place.suffix != GGUF:
            return cls(place, {"revision": revision or "main"})
        return cls(place.parent, {"gguf_file": place.name}, _unpacking())

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file."""
        return "gguf_file" in self.options

    @property
    def file(self) -> Path:
        """The GGUF file."""
        return Path(self.name) / self.options["gguf_file"]


def _unpacking() -> dict[str, Any]:
    """What makes transformers unpack a GGUF file's blocks; releases that always do have no such option."""
    try:
        from transformers import GgufConfig
    except ImportError:
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


@contextmanager
def quiet() -> Iterator[None]:
    """Turns transformers' progress bars and the Hub's retry messages off, and on again if they were on."""
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


def first_line(error: BaseException) -> str:
    """The message of an error, on one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
