"""EAGLE-3's checkpoints in every published form, made on the spot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eagle3_texts as texts
import torch
from safetensors.torch import save_file

from specframe_eagle.eagle3 import Eagle3

H, INNER, HEAD, KEPT = 8, 12, 4, 6
IDS = "eagle_aux_hidden_state_layer_ids"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "vocab_size": texts.VOCAB,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
OFFICIAL = {**LLAMA, "architectures": ["LlamaForCausalLM"], "draft_vocab_size": KEPT}
SPECFORGE = {
    **OFFICIAL,
    "architectures": ["LlamaForCausalLMEagle3"],
    "eagle_config": {"use_aux_hidden_state": True, IDS: [0, 2, 6]},
}
VLLM = {
    **OFFICIAL,
    "architectures": ["Eagle3LlamaForCausalLM"],
    IDS: [1, 3, 7],
    "norm_before_residual": True,
    "fc_norm": True,
    "norm_output": True,
}
SPECULATORS = {
    "architectures": ["Eagle3DraftModel"],
    "speculators_model_type": "eagle3",
    "speculators_version": "0.9.0",
    "draft_vocab_size": KEPT,
    IDS: [1, 3, 7],
    "norm_before_residual": False,
    "norm_before_fc": True,
    "embed_requires_grad": False,
    "speculators_config": {"algorithm": "eagle3"},
    "transformer_layer_config": {**LLAMA, "model_type": "qwen3"},
}
FORMS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "official": (OFFICIAL, (1, 3, 4)),
    "specforge": (SPECFORGE, (0, 2, 6)),
    "vllm": (VLLM, (0, 2, 6)),
    "speculators": (SPECULATORS, (0, 2, 6)),
}
"""Their configs, and the layers that each means of a target of eight."""


def publish(folder: Path, config: dict[str, Any], change: Callable[[dict[str, Any]], object] | None = None) -> None:
    """Writes a checkpoint as its authors lay it out; `change` spoils its tensors."""
    chance = torch.Generator().manual_seed(3)
    layer = "layers.0." if "speculators_model_type" in config else "midlayer."
    attention = {"q": 2 * HEAD, "k": HEAD, "v": HEAD}
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (H, 3 * H),
        "norm.weight": (H,),
        "lm_head.weight": (KEPT, H),
        f"{layer}self_attn.o_proj.weight": (H, 2 * HEAD),
        f"{layer}mlp.gate_proj.weight": (INNER, H),
        f"{layer}mlp.up_proj.weight": (INNER, H),
        f"{layer}mlp.down_proj.weight": (H, INNER),
        **{f"{layer}self_attn.{which}_proj.weight": (size, 2 * H) for which, size in attention.items()},
        **{f"{layer}{norm}.weight": (H,) for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm")},
    }
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{tap}.weight": (H,) for tap in range(3)}
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (3 * H,)
    if config.get("transformer_layer_config", {}).get("model_type") == "qwen3":
        shapes |= {f"{layer}self_attn.{which}_norm.weight": (HEAD,) for which in "qk"}
    tensors: dict[str, Any] = {name: torch.randn(shape, generator=chance).half() for name, shape in shapes.items()}
    tokens = torch.tensor([0, 1, 4, 5, 8, 10])
    tensors["d2t"] = tokens - torch.arange(KEPT)
    tensors["t2d"] = torch.zeros(texts.VOCAB, dtype=torch.bool).index_fill(0, tokens, True)
    if "speculators_model_type" in config:
        tensors["embed_tokens.weight"] = texts.target(torch.float32).embed(torch.arange(texts.VOCAB)).half()
    if change is not None:
        change(tensors)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def bound(folder: Path, layers: int = texts.LAYERS, **options: Any) -> Eagle3:
    drafter = Eagle3(weights=str(folder), **options)
    drafter.bind(texts.target(torch.float32, layers=layers))
    return drafter
