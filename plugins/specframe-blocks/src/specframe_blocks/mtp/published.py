"""Reading of an MTP head from a published checkpoint: the target's own files, or a folder of speculators."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specframe import WeightsError
from specframe.neural import checkpoint

PARTS = {
    "input_proj": ("mtp.fc", "eh_proj"),
    "token_layernorm": ("mtp.pre_fc_norm_embedding", "enorm"),
    "hidden_layernorm": ("mtp.pre_fc_norm_hidden", "hnorm"),
    "final_layernorm": ("mtp.norm", "shared_head.norm"),
}
"""Names of each part: ours, then Qwen's and DeepSeek's."""


def is_published(config: Mapping[str, Any]) -> bool:
    """Returns whether a folder was written by a program other than specframe."""
    return config.get("format") != "mtp"


def fill(network: nn.Module, folder: Path, layers: int) -> None:
    """Copies the head's weights from a published checkpoint, for a target of `layers` layers.

    Raises WeightsError for one without a head or with another kind of head, with every mismatch.
    """
    found = dict(_read(folder, layers))
    if not found:
        raise WeightsError(
            f"{folder} holds no head for multi-token prediction: no mtp_layers.0.*, no mtp.*, and no "
            f"model.layers.{layers}.eh_proj"
        )
    wanted = network.state_dict()
    lines = [f"{name}: missing" for name in wanted if name not in found]
    lines += [f"{name}: unexpected" for name in found if name not in wanted]
    for name in wanted.keys() & found.keys():
        if found[name].shape != wanted[name].shape:
            lines.append(f"{name}: has shape {list(found[name].shape)}, should have {list(wanted[name].shape)}")
        elif not found[name].isfinite().all():
            lines.append(f"{name}: holds values that are not finite (NaN or infinity)")
    if lines:
        raise WeightsError(f"the head in {folder} does not fit:" + "".join(f"\n  {line}" for line in sorted(lines)))
    network.load_state_dict({name: found[name].to(wanted[name].dtype) for name in wanted})


def dtype_of(folder: Path, layers: int) -> torch.dtype:
    """Returns the stored dtype of the head's first map. Raises WeightsError if no file can be read."""
    found = (part.dtype for name, part in _read(folder, layers, own=True) if name == "input_proj.weight")
    return next(found, torch.bfloat16)


def ours(name: str, layers: int) -> str | None:
    """Returns our name of a stored tensor; None for a tensor that does not belong to the head."""
    if name.startswith("mtp_layers.0."):
        name = name.removeprefix("mtp_layers.0.")
        return name if name.split(".")[0] in PARTS else f"layer.layer.{name}"
    for own, (qwen, deepseek) in PARTS.items():
        if name in (f"{qwen}.weight", f"model.layers.{layers}.{deepseek}.weight"):
            return f"{own}.weight"
    if match := re.fullmatch(rf"(?:mtp\.layers\.0|model\.layers\.{layers})\.(.+)", name):
        rest = match[1]
        # DeepSeek also stores copies of the target's embedding and LM head
        return None if rest.startswith(("embed_tokens.", "shared_head.")) else f"layer.layer.{rest}"
    return None


def _read(folder: Path, layers: int, *, own: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yields the head's tensors by our names; with `own`, also those of a folder written by specframe."""

    def is_part(name: str) -> bool:
        return ours(name, layers) is not None or (own and name == "input_proj.weight")

    if not checkpoint.has_weights(folder, wanted=is_part):
        raise WeightsError(
            f"{folder} holds no {checkpoint.WEIGHTS}; if it holds pickled weights, convert them once: "
            "specframe import RECIPE drafter.weights=FOLDER --out NEW_FOLDER"
        )
    stored = checkpoint.FileTensors(folder, wanted=is_part)
    for name in filter(is_part, stored):
        yield ours(name, layers) or name, stored[name]
