"""Processor of a model that reads images: converts texts with images to tokens and tensors."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from specframe.components.targets.source import ModelSource
from specframe.components.targets.tokenizer import TokenizerSource
from specframe.kernel.errors import InputError, first_line

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

    Image = str | Path | bytes | Picture
    """A file, its bytes, or a Pillow picture."""

IDS, MASK = "input_ids", "attention_mask"
BLIND = "the target reads texts alone; leave the image out"
MOST = 1 << 25
"""Maximum number of pixels, checked before decompression: a small file can hold a huge image."""
EXTRA = 'images need the package pillow: pip install "specframe[images]"'


class ImageProcessor:
    """A transformers processor, loaded from its model's folder or the Hub on first use."""

    def __init__(self, source: TokenizerSource) -> None:
        self._source = source
        self._loaded: Any = None

    def read_turns(
        self, turns: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> tuple[list[int], dict[str, Tensor]]:
        """Returns the token ids of a conversation up to the next answer, and the other inputs of its images.

        The content of a turn is a text or a list of parts: {"type": "text", "text": ..} and {"type": "image", "image":
        ..}. `options` are variables of the chat template. Raises InputError for an image that cannot be read, and for a
        conversation that the template or the processor refuses.
        """
        processor = self._get()
        if not (processor.chat_template or processor.tokenizer.chat_template):
            raise InputError("run.chat is true, but the target's processor has no chat template; set run.chat=false")
        opened = [{**turn, "content": _open_parts(turn["content"])} for turn in turns]
        fixed = {"tokenize": True, "return_dict": True, "return_tensors": "pt"}
        with _refusals():
            return _split(processor.apply_chat_template(opened, **{"add_generation_prompt": True, **options, **fixed}))

    def read_text(self, text: str, images: Sequence[Image]) -> tuple[list[int], dict[str, Tensor]]:
        """Returns the token ids of a text after images, and the images' other inputs.

        A text with the processor's own image tokens determines the places of the images. Raises InputError for an image
        that cannot be read, and if the number of images differs from the number of places.
        """
        processor = self._get()
        opened = [open_image(image) for image in images]
        mark = str(getattr(processor, "image_token", ""))
        placed = text if mark and mark in text else mark * len(opened) + text
        with _refusals():
            return _split(processor(text=[placed], images=[opened], return_tensors="pt"))

    def _get(self) -> Any:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded

    def _load(self) -> Any:
        from transformers import AutoProcessor

        if self._source.checkpoint is None:
            raise InputError("a target in memory has no processor for images; name the model's folder in its place")
        place, revision = self._source.checkpoint
        try:
            with _silent():
                source = ModelSource.of(place, revision)
                found = AutoProcessor.from_pretrained(source.name, **source.options, trust_remote_code=False)
        except Exception as error:  # missing packages, missing or damaged files
            raise InputError(f"the processor of {place} cannot be loaded: {first_line(error)}") from error
        if getattr(found, "image_processor", None) is None or getattr(found, "tokenizer", None) is None:
            raise InputError(f"{place} holds no processor for images, only {type(found).__name__}")
        return found


def open_image(image: Image) -> Picture:
    """Returns a picture in RGB, rotated by its EXIF orientation, as transformers' `load_image` opens it.

    Raises InputError for a file that is missing or is no image.
    """
    try:
        from PIL import Image as pillow
        from PIL import ImageOps
    except ImportError as error:
        raise InputError(EXTRA) from error
    if isinstance(image, pillow.Image):
        return ImageOps.exif_transpose(image).convert("RGB")
    name = "the image" if isinstance(image, bytes) else str(image)
    try:
        stored = io.BytesIO(image) if isinstance(image, bytes) else Path(image).expanduser()
        with pillow.open(stored) as opened:
            if opened.width * opened.height > MOST:
                raise InputError(f"{name} has {opened.width} x {opened.height} pixels; make it smaller, {MOST} at most")
            return ImageOps.exif_transpose(opened).convert("RGB")
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"there is no file {name}") from error
    except pillow.UnidentifiedImageError as error:
        raise InputError(f"{name} is no image that can be read; PNG, JPEG, WebP and GIF can") from error
    except (OSError, ValueError, SyntaxError, RuntimeError, pillow.DecompressionBombError) as error:
        raise InputError(f"{name} cannot be read as an image: {first_line(error)}") from error


def _open_parts(content: Any) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part | {"image": open_image(part["image"])} if part["type"] == "image" else part for part in content]


def _split(found: Mapping[str, Tensor]) -> tuple[list[int], dict[str, Tensor]]:
    """Splits a processor's output for one prompt into its tokens and the other inputs."""
    inputs = {name: value for name, value in found.items() if name not in (IDS, MASK)}
    return cast("list[int]", found[IDS][0].tolist()), inputs


@contextmanager
def _refusals() -> Iterator[None]:
    """Converts errors of templates and processors, which may be of any type, to one-line errors."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the target's processor refuses the prompt: {first_line(error)}") from error


@contextmanager
def _silent() -> Iterator[None]:
    """Silences transformers' warnings, such as those of processors that fall back on Pillow without torchvision."""
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
