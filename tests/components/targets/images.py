"""Tiny models that read images, and prompts with images for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specframe.components.targets.hf import HFTarget
from specframe.decoding.requests import Request
from specframe.kernel.types import Prompts
from tests.components.targets.models import accept, random_tree
from tests.components.targets.registry.configs import SPECIAL
from tests.components.targets.registry.walk import build

IMAGE = 4
"""The token that stands for a part of an image."""
OTHERS = {"video_token_id": 48, "vision_start_token_id": 47, "vision_end_token_id": 46}
COUNT = 10
NODES = 7
ROOM = 64
FAMILIES = ["llava", "smolvlm", "idefics3", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3"]
PLACED = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
"""Those that place an image's parts in three rows of positions."""
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {"vision_config": {"depth": 4, "out_hidden_size": 32}},
    "qwen3_vl": {"vision_config": {"depth": 4, "out_hidden_size": 32}},
    "gemma3": {"mm_tokens_per_image": 4},
}


def seeing(family: str, monkeypatch: Any) -> Any:
    """A random model in float64 whose image token is `IMAGE`."""
    monkeypatch.setitem(SPECIAL, family, SPECIAL.get(family, {}) | CONFIGS.get(family, {}))
    model: Any = build(family)
    config = model.config
    for name in ("image_token_id", "image_token_index"):
        if getattr(config, name, None) is not None:
            setattr(config, name, IMAGE)
    for name, token in OTHERS.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, token)
    model.generation_config.eos_token_id = None
    return model


def prompt(model: Any, seed: int, before: int = 1, after: int = 2, wide: int = 2) -> Request:
    """A prompt with one random image between texts; `wide` counts the parts in a row of an image of any size."""
    noise = torch.Generator().manual_seed(seed)
    config, vision = model.config, model.config.vision_config

    def random(*shape: int) -> Tensor:
        return 4 * torch.randn(shape, generator=noise, dtype=torch.float64)

    if model.config.model_type in PLACED:
        merge, size = vision.spatial_merge_size, vision.patch_size
        grid = (1, 2 * merge, wide * merge)
        channels = getattr(vision, "in_channels", None) or vision.in_chans
        pixels = random(grid[1] * grid[2], channels * vision.temporal_patch_size * size**2)
        inputs, count = {"pixel_values": pixels, "image_grid_thw": torch.tensor([grid])}, 2 * wide
    else:
        inputs = {"pixel_values": random(1, 3, vision.image_size, vision.image_size)}
        count = (vision.image_size // vision.patch_size) ** 2
    if hasattr(config, "scale_factor"):
        inputs["pixel_values"], count = inputs["pixel_values"][None], count // config.scale_factor**2
    if hasattr(config, "mm_tokens_per_image"):
        count = config.mm_tokens_per_image
    text = torch.randint(5, 45, (before + after,), generator=noise).tolist()
    tokens = [*text[:before], *[IMAGE] * count, *text[before:]]
    kinds = {"gemma3": "token_type_ids"} | dict.fromkeys(PLACED, "mm_token_type_ids")
    if name := kinds.get(config.model_type):
        inputs[name] = (torch.tensor([tokens]) == IMAGE).int()
    return Request(tokens=tokens, inputs=inputs, max_new_tokens=COUNT, number=seed)


def text(*tokens: int) -> Request:
    """A prompt without an image."""
    return Request(tokens=tokens, max_new_tokens=COUNT, number=tokens[0])


@torch.no_grad()
def generated(model: Any, request: Request) -> tuple[list[int], Tensor]:
    """The continuation of a request by transformers' `generate`, and its logits [COUNT, V]."""
    ids = torch.tensor([list(request.tokens)])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        **request.inputs,
        max_new_tokens=COUNT,
        do_sample=False,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return out.sequences[0, ids.shape[1] :].tolist(), torch.cat(out.logits)


def worst(target: HFTarget, prompts: Prompts, wanted: list[tuple[list[int], Tensor]]) -> float:
    """How far the roots' logits are from `generate`'s, in deviations, in a batch that random trees continue."""
    noise = torch.Generator().manual_seed(7)
    out: list[list[int]] = [[] for _ in wanted]
    target.open(len(wanted), ROOM)
    tree, scores = target.admit(prompts)
    found = 0.0
    while min(map(len, out)) < COUNT:
        for row, (future, logits) in enumerate(wanted):
            if len(out[row]) < COUNT and out[row] == future[: len(out[row])]:
                right = logits[len(out[row])]
                found = max(found, float((scores.logits[row, 0] - right).abs().max() / right.std()))
        committed = target.commit(tree, accept(tree, scores.logits))
        for row, tokens in enumerate(out):
            new = committed.tokens[row, : int(committed.count[row])].tolist()
            tokens += new[-1:] if committed.prompt is not None else new
        rest = [future[len(tokens) :] for (future, _), tokens in zip(wanted, out, strict=True)]
        tree = random_tree(committed.root, rest, NODES, noise)
        scores = target.score(tree)
    if any(tokens[:COUNT] != future for tokens, (future, _) in zip(out, wanted, strict=True)):
        return max(found, 1.0)
    return found
