"""EAGLE-3's drafter in the forms of vLLM, SGLang, speculators and its authors' own code.

A form is refused where it has no place for something: what an engine does not read, it drops without a word.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specframe import WeightsError
from specframe.neural import Export, ambiguous_taps, speculators_config
from specframe_eagle.layout3 import D2T, LM_HEAD, T2D, Layout3
from specframe_eagle.published import EMBEDDING, IDS
from specframe_eagle.wide import Switches, published_taps

if TYPE_CHECKING:
    from specframe_eagle.eagle3 import Eagle3

FORMS = ("vllm", "sglang", "speculators", "eagle")
TOKENS = 3
"""How many tokens a draft has in the commands and configs that are written: the engines' customary number."""
COMMANDS = {
    "vllm": "vllm serve TARGET --speculative-config "
    f'\'{{"method": "eagle3", "model": "FOLDER", "num_speculative_tokens": {TOKENS}}}\'',
    "sglang": "python -m sglang.launch_server --model-path TARGET --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path FOLDER",
    "speculators": "vllm serve FOLDER",
    "eagle": "EaModel.from_pretrained(base_model_path=TARGET, ea_model_path='FOLDER', use_eagle3=True)",
}


def export(drafter: Eagle3, form: str) -> Export:
    """The drafter in a form. Raises WeightsError, every reason named, where the form has no place for it."""
    layout = drafter.layout
    if reasons := _reasons(drafter, form):
        raise WeightsError(f"{form} cannot serve this drafter: {'; '.join(reasons)}")
    tensors = _tensors(drafter, "layers.0." if form == "speculators" else "midlayer.")
    rows = len(tensors[LM_HEAD])
    layout = replace(layout, rows=rows)
    vocab = drafter.target.config.vocab_size
    if form == "speculators" or rows < vocab:
        support = layout.support if layout.support is not None else drafter.support
        tokens = torch.arange(vocab) if support is None else support.cpu()
        tensors[D2T] = tokens - torch.arange(rows)
        tensors[T2D] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, tokens, True)
    config = layout.config
    if form == "speculators":
        with torch.no_grad():
            table = drafter.target.embed(torch.arange(vocab, device=drafter.target.device))
        tensors[EMBEDDING] = table.to(layout.dtype)
        config = wrapped(layout, config, drafter, "Eagle3DraftModel", TOKENS)
        config |= {switch.name: getattr(layout.switches, switch.name) for switch in fields(Switches)}
    return Export(config, tensors, tuple(checklist(layout, form, rows, vocab)), COMMANDS[form])


def _reasons(drafter: Eagle3, form: str) -> list[str]:
    """Why a form has no place for the drafter."""
    layout, layers = drafter.layout, drafter.target.config.num_hidden_layers
    on = [switch.name for switch in fields(Switches) if getattr(layout.switches, switch.name)]
    reasons = ambiguous_taps(layout.taps, layers)
    if form in ("sglang", "eagle"):
        if layout.kind != "llama":
            reasons.append(f"its layer is {layout.kind}'s, whose query and key norms are not read there")
        if getattr(layout.shape, "attention_bias", False):
            reasons.append("its attention has biases, which are not read there")
    if form == "sglang" and "norm_before_residual" in on:
        reasons.append("norm_before_residual is not known there: the residual would start elsewhere than in training")
    if form == "eagle":
        if on:
            reasons.append(f"{', '.join(on)} is not known there")
        if layout.taps != published_taps(layers) or layers < 7:
            always = list(published_taps(layers)) if layers >= 7 else "1, L / 2 - 1 and L - 4"
            reasons.append(f"it reads the layers {list(layout.taps)}, and the authors' code always {always}")
        if layout.shape.head_dim * layout.shape.num_attention_heads != layout.shape.hidden_size:
            reasons.append("its attention heads are of another size than hidden_size / num_attention_heads")
    return reasons


def _tensors(drafter: Eagle3, layer: str) -> dict[str, Tensor]:
    """The network's tensors under the published names, the LM head included where it is the target's."""
    from specframe_eagle.eagle3 import Published3

    layout = drafter.layout
    found = Published3(drafter.network, replace(layout, names=frozenset()), drafter.target).state_dict()
    found.pop(D2T, None)
    found.pop(T2D, None)
    if LM_HEAD not in found:
        found[LM_HEAD] = drafter.rows()
    return {
        name.replace("midlayer.", layer): tensor.to(layout.dtype) if tensor.is_floating_point() else tensor
        for name, tensor in found.items()
    }


def wrapped(layout: Layout3, config: dict[str, Any], drafter: Eagle3, architecture: str, tokens: int) -> dict[str, Any]:
    """The config of the speculators package around that of the layers, without the switches."""
    inner = {name: value for name, value in config.items() if name in layout.shape.to_dict()}
    inner |= {"architectures": None, "model_type": layout.kind, "num_aux_hidden_states": len(layout.taps)}
    return {
        **speculators_config(architecture, layout.algorithm, tokens, drafter.target.config),
        "transformer_layer_config": inner,
        "draft_vocab_size": layout.rows,
        IDS: config[IDS],
        "embed_requires_grad": False,
        "torch_dtype": config["torch_dtype"],
    }


def checklist(layout: Layout3, form: str, rows: int, vocab: int) -> list[tuple[str, str]]:
    """What the engine will take the folder for."""
    shape, taps = layout.shape, layout.taps
    indices = f"{[tap + 1 for tap in taps]} of the hidden states" if form != "sglang" else f"{list(taps)} of the layers"
    if form == "eagle":
        indices = "none in the config: the code always takes these"
    on = [switch.name for switch in fields(Switches) if getattr(layout.switches, switch.name)]
    return [
        ("layer", f"{layout.kind}, width {shape.hidden_size}, {shape.num_attention_heads} heads of {shape.head_dim}"),
        ("reads the outputs of", f"layers {list(taps)}, counted from 0; written as {indices}"),
        ("switches", ", ".join(on) or "none: EAGLE-3 as published"),
        ("residual starts at", "the normed state" if layout.switches.norm_before_residual else "the state as it is"),
        ("draft vocabulary", f"{rows:,} of {vocab:,} tokens" + (", by d2t" if rows < vocab else "")),
        ("embedding", "its own copy of the target's" if form == "speculators" else "the target's"),
        ("rotary base", str((shape.rope_parameters or {}).get("rope_theta"))),
        ("dtype", str(layout.dtype).removeprefix("torch.")),
    ]
