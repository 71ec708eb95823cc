"""EAGLE's drafter in the forms of vLLM, SGLang and its authors' code.

A form that cannot represent the drafter is refused, because engines silently drop fields that they do not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from specframe import WeightsError
from specframe.neural import Export
from specframe_eagle.published import EMBEDDING, EagleLayout

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import NeuralTarget

FORMS = ("vllm", "sglang", "eagle")
ARCHITECTURES = {"vllm": "LlamaForCausalLM", "sglang": "LlamaForCausalLMEagle", "eagle": "LlamaForCausalLM"}
"""Architecture names; vLLM adds its own prefix."""
KINDS = ("llama", "mistral")
"""Target types whose decoder layers equal Llama's numerically: the engines build Llama's layer."""
BIAS = "fc.bias"
MOVED = "its own, in float32: the target's, and a vector that gives the bias of fc, which vLLM drops"
TOLERANCE = 1e-3
"""Largest relative error of a bias that is moved into the embedding."""
ROWS = 8192
"""Rows of an embedding that are moved at a time: float64 takes four times the memory of bfloat16."""
COMMANDS = {
    "vllm": "vllm serve TARGET --speculative-config "
    '\'{"method": "eagle", "model": "FOLDER", "num_speculative_tokens": 3}\'',
    "sglang": "python -m sglang.launch_server --model-path TARGET --speculative-algorithm EAGLE "
    "--speculative-draft-model-path FOLDER",
    "eagle": "EaModel.from_pretrained(base_model_path=TARGET, ea_model_path='FOLDER', use_eagle3=False)",
}


def export(
    form: str, own: Mapping[str, Tensor], layout: EagleLayout, target: NeuralTarget, support: Tensor | None
) -> Export:
    """Converts a drafter with these tensors, under the published names, and this layout to a form.

    `support` holds the tokens that it drafts. Raises WeightsError, with every reason, if the form has no place for
    something.
    """
    tensors = dict(own)
    bias = tensors.get(BIAS)
    reasons = []
    if layout.variant.feature_sampling or layout.variant.partial_alignment:
        reasons.append("feature_sampling and partial_alignment, FSPAD's parts, are not known there")
    if layout.variant.gated:
        reasons.append("the gated fusion, Dovetail's part, is not known there")
    if layout.variant.layers > 1:
        reasons.append(f"it has {layout.variant.layers} decoder layers, and one is read there")
    kind = str(layout.config.get("model_type", "llama"))
    biased = [name for name in tensors if name.endswith("_proj.bias")]
    if kind not in KINDS or biased:
        reasons.append(
            f"its layer is {kind}'s{', with biases' if biased else ''}, and those that are read there are Llama's"
        )
    if reasons:
        raise WeightsError(f"{form} cannot serve this drafter: {'; '.join(reasons)}")
    fc = tensors["fc.weight"]
    if form == "sglang" and bias is None:
        tensors[BIAS] = fc.new_zeros(len(fc))  # the authors' module always has a bias, left random if the file has none
    dropped = tensors.pop(BIAS, None) if form == "vllm" else None
    moved = dropped is not None and bool(dropped.any())
    if (form == "eagle" or moved) and EMBEDDING not in tensors:
        with torch.no_grad():
            tensors[EMBEDDING] = target.embed(torch.arange(target.config.vocab_size, device=target.device))
    if dropped is not None and moved:
        tensors[EMBEDDING] = _with_bias(tensors[EMBEDDING], fc, dropped)
    config = {
        **layout.config,
        "architectures": [ARCHITECTURES[form]],
        "model_type": "llama",
        "bias": BIAS in tensors,
        "torch_dtype": str(layout.dtype).removeprefix("torch."),
    }
    share = "" if support is None else f"; the recipe's draft vocabulary of {len(support):,} tokens is left out"
    checklist = (
        ("layer", f"llama, width {target.config.hidden_size}, no norm before attention"),
        ("reads", "the target's last hidden state, after its final norm"),
        ("fc.bias", "none" if BIAS not in tensors else "zero" if not bool(tensors[BIAS].any()) else "as trained"),
        ("LM head", f"the target's, all {target.config.vocab_size:,} tokens{share}"),
        (
            "embedding",
            "the target's" if EMBEDDING not in tensors else MOVED if moved else "its own copy of the target's",
        ),
        ("dtype", config["torch_dtype"]),
    )
    stored = {name: tensor.to(layout.dtype) for name, tensor in tensors.items()}
    if moved:
        stored[EMBEDDING] = tensors[EMBEDDING]
    return Export(config, stored, checklist, COMMANDS[form], omitted=("drafter.head=null",))


@torch.no_grad()
def _with_bias(embedding: Tensor, fc: Tensor, bias: Tensor) -> Tensor:
    """Returns an embedding [V, D] in float32 with which `fc` has the same outputs without its bias [D].

    The first columns W of `fc` [D, 2D] read the embedding. Every row grows by c, where W c is the bias. Raises
    WeightsError if no such c is found.
    """
    weight, bias = fc.double()[:, : embedding.shape[1]], bias.double()
    shift = torch.linalg.lstsq(weight, bias[:, None]).solution[:, 0]
    moved = torch.empty_like(embedding, dtype=torch.float32)
    for new, old in zip(moved.split(ROWS), embedding.split(ROWS), strict=True):
        new.copy_(old.double() + shift)
        lost = (new.double() - old.double()) @ weight.T - bias  # rounding counts, too
        if not bool((lost.norm(dim=1) <= TOLERANCE * bias.norm()).all()):
            raise WeightsError(
                "vllm cannot serve this drafter: fc has a bias, which vLLM drops, and the embedding cannot give it: "
                "train one with bias: false"
            )
    return moved
