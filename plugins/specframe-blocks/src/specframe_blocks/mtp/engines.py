"""An MTP head in the form of speculators, and of checkpoints that contain a target and its head.

No engine reads a head from its own folder; engines serve the target's checkpoint with the head in it. The last two
forms are therefore the tensors and names to add to that checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from specframe import WeightsError
from specframe.neural import Export, output_weight, speculators_config
from specframe_blocks.mtp.published import PARTS

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from specframe.plugin import NeuralTarget

FORMS = ("speculators", "qwen", "deepseek")
STEPS = 3
"""Number of drafted tokens in the commands and configs that are written."""
COMMAND = (
    "add these tensors to TARGET's checkpoint and to its index; then: vllm serve TARGET --speculative-config "
    f'\'{{"method": "mtp", "num_speculative_tokens": {STEPS}}}\''
)


def export(
    form: str, own: Mapping[str, Tensor], dtype: torch.dtype, target: NeuralTarget, support: Tensor | None
) -> Export:
    """Converts a head with these tensors to a form, stored as `dtype`.

    Raises WeightsError for a head over a draft vocabulary, `support`, because none of the forms has a place for it.
    """
    if support is not None:
        raise WeightsError(f"{form} cannot serve this head: a draft vocabulary is not known there; leave head out")
    layers = int(target.config.num_hidden_layers)
    tensors = {_name(name, form, layers): part for name, part in own.items()}
    if form == "deepseek":
        with torch.no_grad():
            table = target.embed(torch.arange(target.config.vocab_size, device=target.device))
        tensors[f"model.layers.{layers}.embed_tokens.weight"] = table
        tensors[f"model.layers.{layers}.shared_head.head.weight"] = output_weight(target)
    stored: dict[str, Tensor] = {name: part.to(dtype) for name, part in tensors.items()}
    shape = target.config.to_dict()
    for name in ("quantization_config", "_name_or_path", "torch_dtype", "dtype"):
        shape.pop(name, None)
    config = shape if form != "speculators" else _wrapped(shape, target.config, dtype)
    where = {
        "speculators": "a folder of the package speculators",
        "qwen": "mtp.*",
        "deepseek": f"model.layers.{layers}.*",
    }
    checklist = (
        ("layer", f"{target.config.model_type}, width {target.config.hidden_size}"),
        ("reads", "the target's last hidden state, after its final norm; the embedding stands first"),
        ("LM head and embedding", "the target's" + (", copied" if form == "deepseek" else "")),
        ("names", where[form]),
        ("dtype", str(dtype).removeprefix("torch.")),
    )
    return Export(config, stored, checklist, "" if form == "speculators" else COMMAND)


def _name(name: str, form: str, layers: int) -> str:
    """Returns a tensor's name in a form, given ours."""
    part, _, rest = name.partition(".")
    if part not in PARTS:
        rest = name.removeprefix("layer.layer.")
        first = {"speculators": "mtp_layers.0", "qwen": "mtp.layers.0", "deepseek": f"model.layers.{layers}"}[form]
        return f"{first}.{rest}"
    qwen, deepseek = PARTS[part]
    found = {"speculators": f"mtp_layers.0.{part}", "qwen": qwen, "deepseek": f"model.layers.{layers}.{deepseek}"}
    return f"{found[form]}.{rest}"


def _wrapped(shape: dict[str, Any], target: PretrainedConfig, dtype: torch.dtype) -> dict[str, Any]:
    """Returns speculators' config around the target's."""
    return {
        **speculators_config("MTPDraftModel", "mtp", STEPS, target),
        "transformer_layer_config": shape,
        "num_nextn_predict_layers": 1,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
