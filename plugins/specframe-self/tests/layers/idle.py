"""Targets some of whose layers add nothing, on purpose."""

from __future__ import annotations

from collections.abc import Collection

import torch

from specframe.testing import tiny_target


def target_with_idle(idle: Collection[int], layers: int):
    """A random Llama in which these layers pass their input on."""
    target = tiny_target(layers=layers, vocab=64, size=16)
    with torch.no_grad():
        for index in idle:
            layer = target.model.model.layers[index]
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return target
