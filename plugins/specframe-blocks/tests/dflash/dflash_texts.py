"""A random target of eight layers, and block drafters bound to it."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from specframe.components.targets.hf import HFTarget
from specframe.testing import GivenSession, GrowingTree, random_teacher, shake, tiny_target
from specframe_blocks.dflash.dflash import DFlash
from specframe_blocks.dflash.dspark import DSpark

VOCAB, LAYERS = 11, 8
BLOCKS = [
    {},
    {"layers": 1, "causal": True},
    {"from_anchor": True, "taps": [0, 5], "mask_token": 3},
]
"""DFlash as published, JetSpec's causal block with one layer, and one whose anchor predicts."""
SPARKS = [
    {},
    {"markov": "gated", "layers": 1, "confidence": False},
    {"markov": "rnn", "from_anchor": False},
]
"""DSpark with each kind of bias."""


@lru_cache(maxsize=8)
def target(dtype: torch.dtype = torch.float64, *, layers: int = LAYERS, vocab: int = VOCAB) -> HFTarget:
    """A random Llama, two query heads on one of keys."""
    return tiny_target("llama", layers=layers, vocab=vocab, dtype=dtype)


def dflash(dtype: torch.dtype = torch.float64, **options: object) -> DFlash:
    """A drafter of blocks of four rows with random weights."""
    return shaken(DFlash(**{"block_size": 4, "layers": 2, **options}), dtype)


def dspark(dtype: torch.dtype = torch.float64, **options: object) -> DSpark:
    """The same with DSpark's heads."""
    return shaken(DSpark(**{"block_size": 4, "layers": 2, "rank": 3, **options}), dtype)


def bound(kind: type[DFlash], dtype: torch.dtype = torch.float64, **options: object) -> DFlash:
    """A drafter of a kind."""
    return dspark(dtype, **options) if kind is DSpark else dflash(dtype, **options)


def shaken(drafter: DFlash, dtype: torch.dtype = torch.float64) -> DFlash:
    """The drafter, bound, every weight of its own."""
    drafter.bind(target(dtype))
    shake(drafter.network, seed=2)
    return drafter


def session(drafter: DFlash, rows: int, length: int = 60) -> GivenSession:
    """Random texts with the target's features."""
    return GivenSession.of(random_teacher(drafter.target, rows, length))


def taps(drafter: DFlash, session: GivenSession, row: int) -> torch.Tensor:
    """The taps' features of a row, side by side: [n, A D]."""
    return torch.cat([session.tap(tap)[row] for tap in drafter.spec.taps], -1)


def proposed(drafter: DFlash) -> torch.Tensor:
    """The logits below a root, after five pairs."""
    given = session(drafter, 1)
    drafter.open(1, 30)
    drafter.commit(given.admit([5]))
    return drafter.expand(GrowingTree(given.root, VOCAB).frontier([0])).logits


def stored(folder: Path, drafter: DFlash) -> Path:
    """The drafter's folder, its weights what bfloat16 can hold."""
    drafter.network.bfloat16().to(drafter.target.dtype)
    drafter.save(folder)
    return folder


def change(folder: Path, **entries: Any) -> None:
    """Changes entries of the folder's config.json, nested ones by `dflash_config`; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    for name, value in entries.items():
        for place in (config, config["dflash_config"]):
            if name in place or place is config:
                place[name] = value
        if value is None:
            for place in (config, config["dflash_config"]):
                place.pop(name, None)
    path.write_text(json.dumps(config))


def again(folder: Path, kind: type = DFlash, **options: Any) -> DFlash:
    """The drafter of a folder, bound to the same target."""
    drafter = kind(weights=str(folder), **{"block_size": 4, **options})
    drafter.bind(target())
    return drafter
