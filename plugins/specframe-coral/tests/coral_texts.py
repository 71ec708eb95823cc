"""A small random target with its drafters, and what it teaches."""

from __future__ import annotations

from functools import lru_cache

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from specframe import Teacher
from specframe.components.targets.hf import HFTarget
from specframe_coral.router import Router
from specframe_eagle.drafter import Eagle

VOCAB = 11


@lru_cache(maxsize=8)
def target(size: int = 8, vocab: int = VOCAB, dtype: torch.dtype = torch.float64) -> HFTarget:
    """A random Llama of one layer, far from uniform laws."""
    config = AutoConfig.for_model(
        "llama",
        vocab_size=vocab,
        hidden_size=size,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
        initializer_range=0.8,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        made = HFTarget.from_model(AutoModelForCausalLM.from_config(config).to(dtype).eval())
    made.request(frozenset({"last"}))
    return made


def routed(drafter: type = Eagle, dtype: torch.dtype = torch.float64, **options: object) -> tuple[Eagle, Router]:
    """A drafter with a router, untrained, and the router."""
    head = Router(**options)
    made = drafter(head=head)
    made.bind(target(dtype=dtype))
    return made, head


def teach(batch: int, length: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Teacher:
    """Random texts and what the target says about them; some places do not count."""
    chance = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (batch, length), generator=chance)
    mask = torch.rand(batch, length, generator=chance) < 0.8
    mask[:, :2] = False
    return target(dtype=dtype).teach(tokens, mask)
