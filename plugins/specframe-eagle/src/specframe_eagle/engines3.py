"""EAGLE-3's drafter in the forms of vLLM, SGLang, speculators, llama.cpp and its authors' code.

A form that cannot represent the drafter is refused, because engines silently drop fields that they do not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specframe import WeightsError
from specframe.neural import Export, ambiguous_taps, gguf_file, speculators_config
from specframe.plugin import text_of
from specframe_eagle.layout3 import D2T, LM_HEAD, T2D, Layout3
from specframe_eagle.published import EMBEDDING, IDS
from specframe_eagle.wide import Switches, published_taps

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from specframe.plugin import NeuralTarget

FORMS = ("vllm", "sglang", "speculators", "eagle", "gguf")
TOKENS = 3
"""Number of drafted tokens in the commands and configs that are written; the engines' usual value."""
COMMANDS = {
    "vllm": "vllm serve TARGET --speculative-config "
    f'\'{{"method": "eagle3", "model": "FOLDER", "num_speculative_tokens": {TOKENS}}}\'',
    "sglang": "python -m sglang.launch_server --model-path TARGET --speculative-algorithm EAGLE3 "
    "--speculative-draft-model-path FOLDER",
    "speculators": "vllm serve FOLDER",
    "eagle": "EaModel.from_pretrained(base_model_path=TARGET, ea_model_path='FOLDER', use_eagle3=True)",
    "gguf": f"llama-server -m TARGET.gguf -md FOLDER/model.gguf --spec-type draft-eagle3 --spec-draft-n-max {TOKENS}",
}


def export(
    form: str, own: Mapping[str, Tensor], layout: Layout3, target: NeuralTarget, support: Tensor | None
) -> Export:
    """Converts a drafter with these tensors, under the published names with an LM head, and this layout to a form.

    `support` holds the tokens that it drafts. Raises WeightsError, with every reason, if the form has no place for
    something.
    """
    if reasons := _reasons(layout, form, target.config.num_hidden_layers):
        raise WeightsError(f"{form} cannot serve this drafter: {'; '.join(reasons)}")
    if form == "gguf":
        return _gguf(own, layout, target, support)
    layer = "layers.0." if form == "speculators" else "midlayer."
    tensors = {name.replace("midlayer.", layer): stored(part, layout) for name, part in own.items()}
    rows = len(tensors[LM_HEAD])
    layout = replace(layout, rows=rows)
    vocab = target.config.vocab_size
    if rows < vocab:
        tensors |= token_maps(layout.support if layout.support is not None else support, rows, vocab)
    config = layout.config
    if form == "speculators":
        if EMBEDDING not in tensors:
            with torch.no_grad():
                table = target.embed(torch.arange(vocab, device=target.device))
            tensors[EMBEDDING] = table.to(layout.dtype)
        config = wrapped(layout, config, target.config, "Eagle3DraftModel", TOKENS)
        config |= {switch.name: getattr(layout.switches, switch.name) for switch in fields(Switches)}
    return Export(config, tensors, tuple(checklist(layout, form, rows, vocab)), COMMANDS[form])


def _gguf(own: Mapping[str, Tensor], layout: Layout3, target: NeuralTarget, support: Tensor | None) -> Export:
    """Returns the drafter in the form of llama.cpp's `eagle3`: three layer inputs, and `d2t` as tokens, not offsets."""
    apart = {"midlayer.hidden_norm.weight": "blk.0.attn_norm_2.weight", "fc.weight": "fc.weight"}
    apart |= {"input_norm.weight": "enc.output_norm.weight"}
    named = {apart[name]: tensor for name, tensor in own.items() if name in apart}
    layers = {name: tensor for name, tensor in own.items() if name not in apart}
    places = {"midlayer.": "model.layers.0.", "norm.": "model.norm.", "embed_tokens.": "model.embed_tokens."}

    def place(name: str) -> str:
        first = next((start for start in places if name.startswith(start)), "")
        return places.get(first, "") + name.removeprefix(first)

    plain = {place(name): tensor for name, tensor in layers.items()}
    named |= gguf_file.llama_tensors(plain, layout.shape)
    rows, vocab = len(own[LM_HEAD]), target.config.vocab_size
    if rows < vocab:
        tokens = layout.support if layout.support is not None else support
        assert tokens is not None, "fewer rows than tokens are a draft vocabulary"
        named[D2T] = tokens
    settings = gguf_file.llama_settings("eagle3", layout.shape) | {
        "eagle3.target_layers": [tap + 1 for tap in layout.taps],
        "eagle3.target_hidden_size": target.config.hidden_size,
        "eagle3.norm_before_residual": layout.switches.norm_before_residual,
        "eagle3.norm_before_fc": layout.switches.norm_before_fc,
        **gguf_file.tokenizer_settings(text_of(target).tokenizer, vocab),
    }
    shown = dict(checklist(layout, "gguf", rows, vocab)) | {"dtype": "float32"}
    return Export(settings, named, tuple(shown.items()), COMMANDS["gguf"], "model.gguf")


def stored(tensor: Tensor, layout: Layout3) -> Tensor:
    """Returns a tensor in its stored dtype: integers are unchanged, other numbers have the layout's dtype."""
    return tensor.to(layout.dtype) if tensor.is_floating_point() else tensor


def token_maps(support: Tensor | None, rows: int, vocab: int) -> dict[str, Tensor]:
    """Returns the tensors that map rows of an LM head to tokens: offsets, and a mask of the vocabulary."""
    tokens = torch.arange(vocab) if support is None else support.cpu()
    inside = torch.zeros(vocab, dtype=torch.bool).index_fill(0, tokens, True)
    return {D2T: tokens - torch.arange(rows), T2D: inside}


def _reasons(layout: Layout3, form: str, layers: int) -> list[str]:
    """Returns the reasons for which a form cannot represent a drafter of a target of `layers` layers."""
    on = [switch.name for switch in fields(Switches) if getattr(layout.switches, switch.name)]
    reasons = ambiguous_taps(layout.taps, layers)
    if (count := layout.shape.num_hidden_layers) > 1:
        reasons.append(f"it has {count} decoder layers, and one is read there")
    if form == "gguf":
        reasons += gguf_file.llama_reasons(layout.shape)
        if layout.switches.fc_norm:
            reasons.append("fc_norm is not known there: train one with fc_norm: false")
        if layout.switches.norm_output:
            reasons.append("norm_output is not known there: the state before the norm is fed back")
        if len(layout.taps) != 3:
            reasons.append(f"it reads {len(layout.taps)} layers, and three are read there")
        if layout.window is not None:
            reasons.append("the window of its layer is not known there")
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


def wrapped(
    layout: Layout3, config: dict[str, Any], target: PretrainedConfig, architecture: str, tokens: int
) -> dict[str, Any]:
    """Returns speculators' config around that of the layers, without the switches."""
    known = {*layout.shape.to_dict(), "layer_types", "sliding_window"}
    inner = {name: value for name, value in config.items() if name in known}
    inner |= {"architectures": None, "model_type": layout.kind, "num_aux_hidden_states": len(layout.taps)}
    return {
        **speculators_config(architecture, layout.algorithm, tokens, target),
        "transformer_layer_config": inner,
        "draft_vocab_size": layout.rows,
        IDS: config[IDS],
        "embed_requires_grad": False,
        "torch_dtype": config["torch_dtype"],
    }


def checklist(layout: Layout3, form: str, rows: int, vocab: int) -> list[tuple[str, str]]:
    """Returns the settings that the engine will infer from the folder."""
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
