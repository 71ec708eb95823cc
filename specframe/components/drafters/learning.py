"""A drafting model that learns: made anew, sampled from, and saved."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specframe.components.targets.hf import HFTarget
from specframe.components.targets.source import quiet
from specframe.kernel.errors import CompositionError, InputError, WeightsError
from specframe.kernel.interfaces import Target

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)
"""What may be given of a fresh model."""
HEAD = 64
"""The width of an attention head, where the number of heads is not given."""


def checked_sizes(sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of a fresh model, all of them. Raises InputError for one that is unknown or not positive."""
    if unknown := sorted(sizes.keys() - set(SIZES)):
        raise InputError(f"a fresh model has no size {unknown[0]!r}; there are {', '.join(SIZES)}")
    if wrong := [name for name, value in sizes.items() if value < 1]:
        raise InputError(f"fresh: {wrong[0]} must be at least 1, not {sizes[wrong[0]]}")
    width = sizes.get("hidden_size", 256)
    heads = sizes.get("num_attention_heads", max(1, width // HEAD))
    default = {
        "hidden_size": width,
        "intermediate_size": 3 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
    }
    whole = default | dict(sizes)
    if width % heads or heads % whole["num_key_value_heads"]:
        raise InputError(
            "fresh: hidden_size must be a multiple of num_attention_heads, and that of num_key_value_heads"
        )
    return whole


def fresh_model(sizes: Mapping[str, int], target: Target) -> HFTarget:
    """A random Llama of these sizes, of the target's vocabulary, tokenizer, context and device, in float32.

    The same sizes give the same weights. Raises CompositionError for a target that is no transformers model.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    if not isinstance(target, HFTarget):
        raise CompositionError("a fresh drafting model takes the tokenizer of a target that is a transformers model")
    ends: list[int] = sorted(target.ends)
    values: dict[str, Any] = {
        "vocab_size": target.vocab_size,
        "tie_word_embeddings": True,
        "bos_token_id": getattr(target.config, "bos_token_id", None),
        "eos_token_id": ends or None,
        "pad_token_id": None,
        "max_position_embeddings": target.context,
        **sizes,
    }
    config = LlamaConfig(**values)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval().to(target.device)
    return HFTarget.from_model(model, target.tokenizer)


@torch.no_grad()
def sample_on(model: nn.Module, tokens: Tensor, start: Tensor, temperature: float) -> Tensor:
    """The texts [B, L] with the model's samples in place of the tokens from `start` [B], at least 1, on."""
    from transformers import DynamicCache

    training = model.training
    model.eval()
    texts, first = tokens.clone(), int(start.min())
    cache = DynamicCache()
    read = 0
    for place in range(first, texts.shape[1]):
        logits = model(texts[:, read:place], past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
        drawn = torch.multinomial((logits.float() / temperature).softmax(-1), 1)[:, 0]
        texts[:, place] = torch.where(place >= start, drawn, texts[:, place])
        read = place
    model.train(training)
    return texts


def save_model(model: nn.Module, tokenizer: Any, folder: Path) -> None:
    """Writes a model and its tokenizer as `model: folder` loads them, each file whole or not at all.

    Raises WeightsError where the folder cannot be written; what it held stays.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".model-", dir=folder) as part:
            with quiet():
                model.save_pretrained(part, max_shard_size="1000GB")  # type: ignore[operator]
            if tokenizer is not None:
                tokenizer.save_pretrained(part)
            for file in sorted(Path(part).iterdir()):
                os.replace(file, folder / file.name)
    except (OSError, RuntimeError) as error:  # safetensors reports a full disk as an error of its own
        raise WeightsError(f"cannot write the model to {folder}: {error}") from error
