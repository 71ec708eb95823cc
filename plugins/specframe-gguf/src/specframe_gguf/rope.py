"""The rotary embedding in a file's metadata, as llama.cpp computes it, in transformers' parameters."""

from __future__ import annotations

import math
from typing import Any

import torch

from specframe import InputError
from specframe_gguf import blocks
from specframe_gguf.header import GGUFFile

FREQUENCIES = "rope_freqs.weight"
"""Divisors of the rotary frequencies: Llama 3's scaling, which the metadata does not state."""


def rope_parameters(file: GGUFFile, head: int) -> dict[str, Any]:
    """Returns the parameters of the rotary embedding for a head size. Raises InputError for an unsupported one."""
    rope = _scaling(file)
    if FREQUENCIES in file.tensors:
        if rope["rope_type"] != "default" or rotated(file, head) != head:
            raise InputError(
                f"{file.path} scales its rotary embedding both by {FREQUENCIES} and by its metadata, which is not read"
            )
        rope |= _llama3(file, rope["rope_theta"])
    rope = _partial(file, rope, head)
    if file.architecture != "gemma3":
        return rope
    # layers with windows have another rotary embedding
    near = {"rope_type": "default", "rope_theta": file.get("rope.freq_base_swa", 10000.0)}
    return {"full_attention": rope, "sliding_attention": _partial(file, near, head)}


def rotated(file: GGUFFile, head: int) -> int:
    """Returns how many elements of a head are rotated; the others are unchanged."""
    return int(file.get("rope.dimension_count", head))


def scaling(file: GGUFFile) -> tuple[str, float]:
    """Returns the type of the rotary embedding's scaling, and its factor: linear if no type is named."""
    kind = str(file.get("rope.scaling.type", "linear"))
    factor = float(file.get("rope.scaling.factor", file.get("rope.scale_linear", 0.0))) or 1.0
    if factor <= 0:
        raise InputError(f"{file.path} stretches its rotary embedding by {factor:g}, which cannot be")
    return ("none", 1.0) if kind == "none" or (kind == "linear" and factor == 1.0) else (kind, factor)


def _scaling(file: GGUFFile) -> dict[str, Any]:
    kind, factor = scaling(file)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": file.get("rope.freq_base", 10000.0)}
    size = float(file.get("rope.scaling.attn_factor", 1.0))
    mix = float(file.get("rope.scaling.yarn_ext_factor", -1.0))  # below 0: the default of the type
    if kind == "yarn" and (mix < 0 or mix == 1):
        original = file.get("rope.scaling.original_context_length") or file.get("context_length")
        rope |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        for end in ("beta_fast", "beta_slow"):
            if (turns := file.get(f"rope.scaling.yarn_{end}")) is not None:
                rope[end] = turns
        total = _size(file, factor)
        return rope if total * size == _log_size(factor) else rope | {"attention_factor": total * size}
    if kind not in ("none", "linear", "yarn"):
        raise InputError(f"{file.path}: a rotary embedding scaled by {kind!r} is not read from GGUF")
    if size != 1 or mix > 0 or kind == "yarn":
        raise InputError(
            f"{file.path}: a rotary embedding scaled by {kind!r} with rope.scaling.attn_factor {size:g} and "
            f"yarn_ext_factor {mix:g} is not read from GGUF"
        )
    return rope if kind == "none" else rope | {"rope_type": "linear", "factor": factor}


def _size(file: GGUFFile, factor: float) -> float:
    """Returns the factor of YaRN's cosines and sines, without `rope.scaling.attn_factor`."""
    if (stated := file.get("rope.scaling.yarn_attn_factor")) is not None:
        return float(stated)  # the `attention_factor` of the original config
    multiplier = float(file.get("rope.scaling.yarn_log_multiplier", 0.0))  # DeepSeek's mscale_all_dim
    return _log_size(factor) / (_log_size(factor, multiplier) if multiplier else 1.0)


def _log_size(factor: float, multiplier: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0


def _partial(file: GGUFFile, rope: dict[str, Any], head: int) -> dict[str, Any]:
    """Returns the parameters if only the first elements of a head are rotated, for weights in transformers' order.

    transformers' layers rotate the whole head, so the other elements get the frequency 0. Its proportional rotary
    embedding takes frequencies of the whole head's width, so the base is adapted. Raises InputError for scaling other
    than linear, and for an impossible number.
    """
    turned = rotated(file, head)
    if turned == head:
        return rope
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if turned % 2 or head % 2 or not 0 < turned < head:
        raise InputError(f"{file.path} rotates {turned} of the {head} numbers of a head, which cannot be")
    if rope["rope_type"] not in ("default", "linear") or "proportional" not in ROPE_INIT_FUNCTIONS:
        raise InputError(
            f"{file.path} rotates {turned} of the {head} numbers of a head, scaled by {rope['rope_type']!r}: "
            "that is not read from GGUF"
        )
    share = turned / head
    if int(share * head // 2) != turned // 2:  # transformers rounds down
        share = math.nextafter(share, 1.0)
    theta = rope["rope_theta"] ** (head / turned)
    changed = {"rope_type": "proportional", "rope_theta": theta, "partial_rotary_factor": share}
    return rope | changed


def _llama3(file: GGUFFile, theta: float) -> dict[str, Any]:
    """Recovers Llama 3's scaling, with its published constants except the factor, from the divisors in a file.

    Raises InputError for other divisors.
    """
    tensor = file.tensors[FREQUENCIES]
    found = blocks.unpack(file.raw(tensor), tensor.kind, torch.float32)[0]  # [head / 2]
    factor = float(found.max())
    waves = 2 * math.pi * theta ** (torch.arange(len(found)) / len(found))
    smooth = ((8192 / waves - 1.0) / 3.0).clamp(0, 1)
    wanted = 1 / ((1 - smooth) / factor + smooth)
    if not torch.allclose(found, wanted, rtol=1e-4):
        raise InputError(f"{file.path} scales its rotary embedding by {FREQUENCIES} in another way than Llama 3 does")
    ends = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return {"rope_type": "llama3", "factor": factor, **ends}
