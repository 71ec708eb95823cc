"""One architecture that reads images, tiny and random: does it decode after an image as `generate` does?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.components.targets.hf import HFTarget
from specframe.decoding.requests import Request, prompts_of
from specframe.kernel.errors import SpecframeError
from tests.components.targets.images import COUNT, FAMILIES, IMAGE, generated, prompt, seeing, worst

PARTS = (1, 2, 4, 8, 9, 16, 25, 36)
"""Numbers of tokens that an image may stand for."""


def decodes_after_image(name: str) -> str:
    """Returns `identical`, `wrong`, the refusal of the target, or nothing where no image can be made for the model."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            model = seeing(name, patch)
            request = next(_requests(name, model))
        except (Exception, StopIteration):  # of configs and forward passes of any kind
            return ""
        try:
            target = HFTarget.from_model(model)
            requests = [request, replace(request, tokens=[*request.tokens, 7, 8], inputs=_longer(request, 2))]
            wanted = [generated(model, one) for one in requests]
            found = [worst(target, prompts_of([one]), [texts]) for one, texts in zip(requests, wanted, strict=True)]
        except SpecframeError as error:
            return str(error)
        return "identical" if max(found) < 1e-4 else "wrong"


def _longer(request: Request, more: int) -> dict[str, Tensor]:
    count = len(request.tokens)
    whole = {name: value for name, value in request.inputs.items() if value.shape == (1, count)}
    return {**request.inputs, **{name: torch.nn.functional.pad(value, (0, more)) for name, value in whole.items()}}


def _requests(name: str, model: Any) -> Iterator[Request]:
    """Prompts with an image that the model reads: another image gives other logits."""
    if name in FAMILIES:
        yield prompt(model, 1)
        return
    for parts in PARTS:
        tokens = [9, *[IMAGE] * parts, 7, 5]
        for inputs in _inputs(model, tokens):
            try:
                ids = torch.tensor([tokens])
                pixels = inputs["pixel_values"]
                with torch.no_grad():
                    logits = [
                        model(input_ids=ids, **{**inputs, "pixel_values": each}).logits[0, -1]
                        for each in (pixels, 2 * pixels + 1)
                    ]
                request = Request(tokens=tokens, inputs=inputs, max_new_tokens=COUNT)
                generated(model, request)
            except Exception:  # the wrong number of parts, or inputs of another kind
                continue
            if not torch.equal(*logits):
                yield request


def _inputs(model: Any, tokens: list[int]) -> Iterator[dict[str, Tensor]]:
    """Inputs as processors make them: a square of pixels or its patches, and numbers of their size."""
    vision = getattr(model.config, "vision_config", None) or model.config
    noise = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return 4 * torch.randn(shape, generator=noise, dtype=torch.float64)

    kinds = {"mm_token_type_ids": (torch.tensor([tokens]) == IMAGE).int()}
    size = getattr(vision, "image_size", None) or getattr(vision, "resolution", None) or 16
    size = size if isinstance(size, int) else size[0]
    for pixels in (random(1, 3, size, size), random(1, 1, 3, size, size)):
        for more in ({}, {"image_sizes": torch.tensor([[size, size]])}):
            yield {"pixel_values": pixels, **more}
    patch, merge = getattr(vision, "patch_size", 2), getattr(vision, "spatial_merge_size", 2)
    channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", None) or 3
    patch = patch if isinstance(patch, int) else patch[0]
    for frames in {getattr(vision, "temporal_patch_size", 1), 1}:
        for wide in (2, 4):
            grid = {"image_grid_thw": torch.tensor([[1, 2 * merge, wide // 2 * 2 * merge]])}
            pixels = random(int(grid["image_grid_thw"].prod()), channels * frames * patch * patch)
            yield {"pixel_values": pixels, **grid, **kinds}
            yield {"pixel_values": pixels, **grid}
            yield {"pixel_values": pixels.view(len(pixels), channels * frames, patch, patch), **grid}
