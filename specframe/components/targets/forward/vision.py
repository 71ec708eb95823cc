"""Inputs that a model reads with the tokens of a prompt, such as images, and their positions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from specframe.kernel.errors import InputError, first_line
from specframe.kernel.types import Prompts

PIXELS = "pixel_values"
OURS = frozenset({"input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds", "logits_to_keep"})
"""Inputs of a forward pass that the target supplies itself."""
TOKENS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
"""Names in configs of the tokens that stand for parts of an image or a video."""
T = TypeVar("T")
Index = Callable[..., tuple[Tensor, Tensor]]
"""transformers' `get_rope_index`: positions [3, B, L], and their offset to the token count of each row, [B, 1]."""


@dataclass(frozen=True)
class Vision:
    """A model's inputs other than tokens, the tokens that stand for them, and their positions."""

    kind: str
    """The model type."""
    names: frozenset[str]
    """Names of the inputs that the forward pass accepts."""
    tokens: frozenset[int]
    """Tokens that stand for parts of an image, one for each feature."""
    index: Index | None
    """The model's function for positions in a text with images; None if positions are counted as in any text."""

    @classmethod
    def of(cls, model: Any) -> Vision:
        """Reads these properties from a model of transformers."""
        names = frozenset(inspect.signature(model.forward).parameters) - OURS
        found = [getattr(model.config, name, None) for name in TOKENS]
        tokens = frozenset(token for token in found if isinstance(token, int)) if PIXELS in names else frozenset[int]()
        index: Index | None = getattr(getattr(model, "model", model), "get_rope_index", None)
        return cls(model.config.model_type, names, tokens, index)

    def require(self, inputs: Mapping[str, Tensor]) -> None:
        """Raises InputError for inputs that the model does not accept."""
        if inputs and PIXELS not in self.names:
            raise InputError(f"the target reads texts alone: {self.kind} takes no {PIXELS}, so leave the image out")
        if unknown := sorted(inputs.keys() - self.names):
            raise InputError(f"{self.kind} reads no {unknown[0]} with a prompt")

    def place(self, prompts: Prompts) -> tuple[Tensor | None, Tensor | None]:
        """Returns the positions [.., A, L] of prompts with images, and the offset of each row's next position, [A].

        The offset is relative to the number of tokens. Both are None if positions are counted in tokens. They are
        computed by the model's function, never taken from what its last call left on the module.
        """
        if self.index is None or not prompts.inputs:
            return None, None
        index = self.index
        takes = inspect.signature(index).parameters
        given = {name: values for name, values in prompts.inputs.items() if name in takes}
        if "mm_token_type_ids" in takes and "mm_token_type_ids" not in given:
            raise InputError(f"{self.kind} places an image by mm_token_type_ids, which its processor makes: give them")
        seen = torch.arange(prompts.tokens.shape[1], device=prompts.count.device) < prompts.count[:, None]
        places, offset = self._try(lambda: index(prompts.tokens, attention_mask=seen.long(), **given))
        return places, offset[:, 0]

    def look(self, read: Callable[[], T], inputs: Mapping[str, Tensor]) -> T:
        """Reads texts with inputs. Raises InputError if images do not fit the tokens that stand for them."""
        return self._try(read) if inputs else read()

    def _try(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except torch.OutOfMemoryError:
            raise
        except (ValueError, RuntimeError, IndexError, StopIteration) as error:  # transformers' checks of images
            raise InputError(f"{self.kind} cannot read the image of a prompt: {first_line(error)}") from error
