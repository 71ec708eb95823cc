"""Tiny random models: small enough to enumerate, with laws far from uniform."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from math import sqrt
from pathlib import Path
from typing import Any

import torch

SPREAD = 2.25
"""Standard deviation of the terms of a weighted sum, which makes laws of every model size uneven."""
CONTEXT = 128


def random_model(
    kind: str = "llama", *, vocab: int, size: int = 8, layers: int = 2, seed: int = 0, eos: int | None = None
) -> Any:
    """Builds a random causal language model of a Llama-like architecture, in float64, in eval mode.

    It has `size` features, two query heads that share a key head, and a context of 128 tokens; `eos` is the token that
    ends a text, None for none. Equal arguments give equal weights, and no global generator is used.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config: Any = AutoConfig.for_model(
        kind,
        vocab_size=vocab,
        hidden_size=size,
        intermediate_size=2 * size,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=size // 2,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        initializer_range=SPREAD / sqrt(size),
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).double().eval()


@lru_cache(maxsize=8)
def tiny_llama(vocab: int, seed: int) -> Any:
    """Returns a random Llama of two layers in float64; the object is shared by all calls and must not be changed."""
    return random_model(vocab=vocab, seed=seed)


@lru_cache(maxsize=8)
def tiny_hybrid(vocab: int, seed: int) -> Any:
    """Returns a random hybrid in float64, one layer of Mamba-2 and one of attention, shared by all calls.

    Its convolution and state have enough weight for earlier tokens to affect the next token's law.
    """
    from transformers import BambaConfig, BambaForCausalLM

    size = 8
    config = BambaConfig(
        vocab_size=vocab,
        hidden_size=size,
        intermediate_size=2 * size,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        attn_layer_indices=[1],
        mamba_n_heads=4,
        mamba_d_head=size // 2,
        mamba_d_state=4,
        mamba_chunk_size=16,
        max_position_embeddings=CONTEXT,
        initializer_range=SPREAD / sqrt(size),
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = BambaForCausalLM(config).double().eval()
        mixer = model.model.layers[0].mamba
        with torch.no_grad():
            mixer.A_log.copy_(torch.linspace(0.02, 0.5, 4).log())
            mixer.D.fill_(0.3)
            mixer.conv1d.weight.mul_(3)
        return model


@lru_cache(maxsize=2)
def tiny_model(vocab: int) -> Path:
    """Returns a folder with such a model, for drafters that load one; it exists as long as the process."""
    holder = tempfile.TemporaryDirectory(prefix="specframe-tiny-")
    _HOLDERS.append(holder)
    tiny_llama(vocab, seed=7).save_pretrained(holder.name)
    return Path(holder.name)


_HOLDERS: list[tempfile.TemporaryDirectory[str]] = []
