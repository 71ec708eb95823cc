"""Small random targets of several kinds, and a drafter bound to them."""

from __future__ import annotations

from functools import lru_cache

import torch

from specframe.components.targets.hf import HFTarget
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.kernel.types import Draw
from specframe.testing import shake, tiny_target
from specframe_eagle.drafter import Eagle

VOCAB = 11
PUBLISHED = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "vocab_size": VOCAB,
}
"""The shape in config.json of a published checkpoint for the Llama target here."""
KINDS = ["llama", "mistral", "qwen2", "qwen3"]
FSPAD = {"feature_sampling": True, "partial_alignment": True}
DOVETAIL = {"fusion": "gated", "layers": 2}
COMPOSITIONS = [
    (lambda: Chain(depth=2), Match),
    (lambda: Chain(depth=2, draw=Draw.IID), Recursive),
    (lambda: Dynamic(depth=2, width=2, nodes=4), Match),
    (lambda: Fixed(widths=[2, 1], draw=Draw.WITHOUT_REPLACEMENT), Recursive),
]
"""Tree policies and verifiers under which a drafter's output is enumerated."""
NETWORKS = [
    *((kind, {}) for kind in KINDS),
    ("llama", {"feature_sampling": True, "bias": False}),
    ("llama", {"partial_alignment": True}),
    ("qwen3", FSPAD),
    ("llama", {"fusion": "gated"}),
    ("qwen2", {"layers": 2}),
    ("llama", FSPAD | {"layers": 2}),
    ("llama", {"layers": 2, "intermediate_size": 20}),
    ("qwen3", DOVETAIL | {"layers": 3}),
]
"""Kinds of targets, and the options of drafters for them."""


@lru_cache(maxsize=8)
def target(kind: str = "llama", dtype: torch.dtype = torch.float64, vocab: int = VOCAB) -> HFTarget:
    """A random model of two layers, two query heads on one of keys, far from uniform laws."""
    return tiny_target(kind, vocab=vocab, dtype=dtype)


def bound(kind: str = "llama", dtype: torch.dtype = torch.float64, **options: object) -> Eagle:
    """A drafter with random weights large enough for every part to matter."""
    drafter = Eagle(**options)
    drafter.bind(target(kind, dtype))
    shake(drafter.module, seed=2)
    return drafter
