"""Medusa's heads in the forms of vLLM and of their authors' code.

A form that cannot represent the drafter is refused, because engines silently drop fields that they do not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from specframe import WeightsError
from specframe.neural import Export, support_of
from specframe_medusa.published import MEDUSA

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Head, NeuralTarget
    from specframe_medusa.networks import MedusaNetwork

FORMS = ("vllm", "medusa")
COMMAND = (
    "vllm serve TARGET --speculative-config "
    '\'{"method": "medusa", "model": "FOLDER", "num_speculative_tokens": HEADS}\''
)


def export(form: str, network: MedusaNetwork, target: NeuralTarget, head: Head | None) -> Export:
    """Returns the heads in a form; `head` is their shared LM head, None if each has its own.

    Raises WeightsError for heads with a shared LM head in the authors' form.
    """
    heads, layers, vocab = network.levels, network.layers, target.config.vocab_size
    checklist = [("reads", "the target's last hidden state, after its final norm")]
    tensors = dict(network.state_dict())
    if form == "medusa":
        if head is not None:
            raise WeightsError(
                f"{form} cannot serve these heads: they share an LM head, and Medusa's code needs their own"
            )
        config: dict[str, Any] = {
            "medusa_num_heads": heads,
            "medusa_num_layers": layers,
            "base_model_name_or_path": target.config._name_or_path,
        }
        tensors = {name: tensor.half() for name, tensor in tensors.items()}
        shown = f"{heads} of {layers} residual block(s) and an LM head of {vocab:,} tokens"
        return Export(config, tensors, (("heads", shown), *checklist, ("dtype", "float16")), file=MEDUSA)
    named = {_vllm_name(name, layers): tensor for name, tensor in tensors.items()}
    support = support_of(head)
    if head is not None:
        named["lm_head.weight"] = _expanded(_rows(head, target), support, vocab)
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": target.config.hidden_size,
        "vocab_size": vocab,
        "truncated_vocab_size": vocab,
        "num_heads": heads,
        "num_hidden_layers": layers,
        "medusa_fc_bias": True,
        "original_lm_head": head is not None,
        "torch_dtype": "float32",
    }
    shared = "one LM head for all" if head is not None else "an LM head each"
    rows, others = vocab if support is None else len(support), ""
    if support is not None:
        others = "; the LM head's other rows are the mean of theirs, which is never the largest logit"
    shown = f"{heads} of {layers} residual block(s), {shared}"
    checklist += [("draft vocabulary", f"{rows:,} of {vocab:,} tokens{others}"), ("dtype", "float32")]
    stored = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in named.items()}
    return Export(config, stored, (("heads", shown), *checklist), COMMAND.replace("HEADS", str(heads)), length=heads)


def _vllm_name(name: str, layers: int) -> str:
    """Returns vLLM's name of a published tensor: `0.1.weight` is head 0's LM head after one block."""
    head, place, *rest = name.split(".")
    return f"lm_heads.{head}.weight" if int(place) == layers else f"blocks.{head}.layers.{place}.{rest[-1]}"


def _expanded(rows: Tensor, support: Tensor | None, vocab: int) -> Tensor:
    """An LM head of all tokens, [V, D], that drafts those of `support`, as `rows` [v, D] do.

    vLLM 0.32 refuses a checkpoint with its own `token_map`. The mean of some logits is never above the largest, so
    tokens with the mean of the rows are never drafted.
    """
    if support is None:
        return rows
    full = rows.mean(0).repeat(vocab, 1)
    full[support] = rows
    return full


@torch.no_grad()
def _rows(head: Head, target: NeuralTarget) -> Tensor:
    """Returns the rows of the shared LM head, [v, D], by applying it to unit vectors."""
    units = torch.eye(target.config.hidden_size, device=target.device, dtype=target.dtype)
    return (head(units) - head(torch.zeros_like(units[:1]))).T
