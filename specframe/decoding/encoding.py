"""Prompts as a target reads them: token ids, and the inputs of their images."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeGuard, cast, overload

from specframe.components.targets.image_processor import BLIND
from specframe.files.text import require_unicode
from specframe.kernel.capabilities import ImageReader
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import text_of
from specframe.recipes.registry import one_line, suggest

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.components.targets.image_processor import Image
    from specframe.kernel.interfaces import Target

Turn = Mapping[str, Any]
"""A message of a conversation: `role`, `content`, and any further values that a chat template reads."""
Prompt = str | Sequence[int] | Sequence[Turn]
"""A text, its token ids, or a conversation, turn by turn."""
FORMS = (
    "a prompt is a text, a list of token ids, or a conversation, such as [{'role': 'user', 'content': 'Hello'}]; "
    "several stand in a list"
)


@dataclass(frozen=True, eq=False)  # the same tokens may stand for other images
class SeenPrompt(Sequence[int]):
    """The token ids of a prompt with images, and the inputs that the target reads with them."""

    tokens: Sequence[int]
    inputs: Mapping[str, Tensor]

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        return self.tokens[place]

    def __len__(self) -> int:
        return len(self.tokens)


def inputs_of(row: Sequence[int]) -> Mapping[str, Tensor]:
    """The inputs that are read with an encoded prompt; empty for a text."""
    return row.inputs if isinstance(row, SeenPrompt) else {}


Key = tuple[tuple[int, ...], str]
"""The token ids of a prompt, and a digest of the inputs that are read with them."""


def key_of(row: Sequence[int]) -> Key:
    """The key of an encoded prompt, which differs for equal tokens with another image."""
    hashed = sha256()
    for name, values in sorted(inputs_of(row).items()):
        hashed.update(f"{name} {values.shape}".encode() + values.contiguous().cpu().numpy().tobytes())
    return tuple(row), hashed.hexdigest()


@dataclass(frozen=True)
class PromptEncoder:
    """Encodes prompts by a target's tokenizer, and by its processor if it reads images."""

    target: Target
    tokenizer: Any
    chat: bool
    """True if a text becomes a user's turn."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the chat template, in every conversation."""

    def encode(self, prompt: Prompt, images: Sequence[Image] = ()) -> Sequence[int]:
        """The token ids of a prompt, with its images before the text."""
        if images:
            self._processor()
        if is_chat(prompt):
            if images:
                raise InputError(
                    "images of a conversation stand in its turns: "
                    "{'role': 'user', 'content': [{'type': 'image', 'image': FILE}, {'type': 'text', 'text': ...}]}"
                )
            return self.encode_turns(prompt)
        if not isinstance(prompt, str):
            return self._check(prompt, images)
        self._require_tokenizer()
        if not prompt.strip():
            raise InputError("a prompt is empty; give it some text")
        require_unicode(prompt, "a prompt")
        if self.chat:
            parts = [*({"type": "image", "image": image} for image in images), {"type": "text", "text": prompt}]
            return self.encode_turns([{"role": "user", "content": parts if images else prompt}])
        if images:
            return SeenPrompt(*self._processor().read_text(prompt, images))
        return list(self.tokenizer(prompt)["input_ids"])

    def encode_turns(self, turns: Sequence[Turn], options: Mapping[str, Any] = MappingProxyType({})) -> Sequence[int]:
        """The token ids of a conversation up to where the next answer begins."""
        self._require_tokenizer()
        for turn in turns:
            if not isinstance(turn, Mapping) or not {"role", "content"} <= turn.keys():
                raise InputError(f"a turn of a conversation has a `role` and a `content`, unlike {turn!r:.60}")
        require_variables(self.tokenizer, self.variables, "run")
        options = {**self.variables, **options}
        if any(_has_image(turn["content"]) for turn in turns):
            return SeenPrompt(*self._processor().read_turns(turns, options))
        if not getattr(self.tokenizer, "chat_template", None):
            raise InputError(
                "run.chat is true, but the target's tokenizer has no chat template; set run.chat=false"
                if self.chat
                else "the target's tokenizer has no chat template, so it reads no conversation; give a text"
            )
        try:
            given = {"add_generation_prompt": True, **options, "return_dict": False}
            return list(self.tokenizer.apply_chat_template(turns, **given))
        except Exception as error:  # a template may raise anything
            raise InputError(f"the target's chat template refuses the prompt: {one_line(error)}") from error

    def _check(self, prompt: Sequence[Any], images: Sequence[Image]) -> Sequence[int]:
        listed = isinstance(prompt, Sequence) and not isinstance(prompt, bytes)
        if not listed or not all(isinstance(token, Integral) for token in prompt):
            raise InputError(f"{FORMS}; got {prompt!r:.60}")
        size = self.target.vocab_size
        if any(not 0 <= token < size for token in prompt):
            raise InputError(f"a prompt has token ids outside the target's vocabulary of {size}")
        if images:
            raise InputError("images are read with a prompt that is a text; give one in place of the token ids")
        return prompt if isinstance(prompt, SeenPrompt) else list(map(int, prompt))

    def _require_tokenizer(self) -> None:
        if self.tokenizer is None:
            raise InputError(
                "this target has no tokenizer: put tokenizer.json and tokenizer_config.json next to its config.json, "
                "or give prompts as lists of token ids, as in run.prompts=[[1,2,3]]"
            )

    def _processor(self) -> ImageReader:
        target = text_of(self.target)
        if not target.image_tokens or target.processor is None:
            raise InputError(BLIND)
        return target.processor


def require_variables(tokenizer: Any, variables: Collection[str], section: str) -> None:
    """Raises InputError for variables of a recipe's section that the tokenizer's chat template does not read."""
    if not variables:
        return
    own = inspect.signature(tokenizer.apply_chat_template).parameters.keys() - {"tools", "documents"}
    words = set(re.findall(r"\w+", str(getattr(tokenizer, "chat_template", None) or "")))
    for name in variables:
        if name in own or name not in words:
            raise InputError(
                f"{section}.chat_template_kwargs: the target's chat template does not read {name!r}"
                f"{suggest(name, words - own)}"
            )


def _has_image(content: Any) -> bool:
    return isinstance(content, list | tuple) and any(
        isinstance(part, Mapping) and part.get("type") == "image" for part in content
    )


def is_chat(prompt: Prompt) -> TypeGuard[Sequence[Turn]]:
    """Returns whether a prompt is a conversation, turn by turn."""
    return isinstance(prompt, list | tuple) and bool(prompt) and all(isinstance(turn, Mapping) for turn in prompt)


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts as a list, which may be given as a single prompt. Raises InputError if there is none."""
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise InputError(f"{FORMS}; got {prompts!r:.60}")
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral | Mapping)):
        return [cast("Prompt", prompts)]
    if len(prompts) == 0:
        raise InputError("there is no prompt; give at least one")
    return list(cast("Sequence[Prompt]", prompts))


def sole(prompt: Prompt | Sequence[Prompt]) -> Prompt:
    """The prompt, or the only one of a list. Raises InputError for several."""
    if len(found := as_list(prompt)) > 1:
        raise InputError(f"one prompt at a time, not {len(found)}")
    return found[0]


def images_of(images: Sequence[Image], prompts: int) -> list[list[Image]]:
    """The images of each prompt: a single prompt takes all; several prompts take one each, in order.

    Raises InputError if several prompts have another number of images.
    """
    if isinstance(images, str | bytes) or not isinstance(images, Sequence):
        raise InputError(f"images stand in a list, such as [{images!r:.60}]")
    if prompts == 1 or not images:
        return [list(images) for _ in range(prompts)]
    if len(images) != prompts:
        raise InputError(
            f"{len(images)} images for {prompts} prompts: give one a prompt, or all of them to a single prompt"
        )
    return [[image] for image in images]
