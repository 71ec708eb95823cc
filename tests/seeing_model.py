"""A small random model that reads images, its processor, and pictures for it: a pytest plugin with their fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.small_model import TINY, make_tokenizer

MARK = "<image>"
PARTS = 4
"""The number of tokens that stand for an image."""
TEMPLATE = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}!{% endif %}"
)


def save_seeing_model(folder: Path) -> None:
    """Writes a LLaVA of two layers in float64, and its processor."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [MARK]})
    text = LlamaConfig(vocab_size=len(tokenizer), eos_token_id=None, bos_token_id=None, **TINY)
    sizes = {name: TINY[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads")}
    vision = CLIPVisionConfig(num_hidden_layers=1, image_size=16, patch_size=8, **sizes)
    image: Any = tokenizer.convert_tokens_to_ids(MARK)
    config = LlavaConfig(
        text_config=text, vision_config=vision, image_token_index=image, vision_feature_layer=-1, image_seq_length=PARTS
    )
    torch.manual_seed(3)
    model: Any = LlavaForConditionalGeneration(config).double()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    model.save_pretrained(folder)
    size = {"height": 16, "width": 16}
    LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=size),
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE,
    ).save_pretrained(folder)


def save_picture(file: Path, seed: int) -> Path:
    """Writes a picture of noise."""
    from PIL import Image

    noise = np.random.default_rng(seed).integers(0, 255, (20, 24, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    return file


@pytest.fixture(scope="session")
def seeing_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the model."""
    folder = tmp_path_factory.mktemp("seeing")
    save_seeing_model(folder)
    return folder


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two pictures."""
    folder = tmp_path_factory.mktemp("photos")
    return [save_picture(folder / f"{seed}.png", seed) for seed in (1, 2)]
