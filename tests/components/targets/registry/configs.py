"""Small configs of the model types in transformers' registries of models that write texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transformers

from specframe.components.targets.architectures import LOADERS, find_classes
from tests.components.targets.models import VOCABULARY

ALWAYS = {"pad_token_id", "bos_token_id", "head_dim", "num_key_value_heads"}
"""Names to set even where the default is None."""
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "n_vocab"), VOCABULARY),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "dim_model"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "dim_ff"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "decoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "multi_query_group_num", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "dim_head", "d_kv"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"), 256),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "top_k_experts", "moe_k", "n_shared_experts"), 2),
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "word_embed_proj_dim": 32,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "qk_head_dim": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_kv_shared_layers": 0,
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), 6),  # shorter than what is decoded
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "rotary_dim": 8,
    "image_size": 32,
    "patch_size": 8,
    "mamba_d_state": 4,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "state_size": 4,
}
"""Sizes under all the names that configs have for them."""

PROJECTED = {"out_hidden_size": 32, "projector_hidden_size": 32}
CONVOLUTIONS = {"layer_types": ["conv", "conv", "full_attention", "conv"]}
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}


def _three_rows(*sections: int, **more: float) -> dict[str, Any]:
    """A rotary embedding that turns sections of a head by a token's time, height and width."""
    return {"rope_parameters": PLAIN | more | {"mrope_section": list(sections)}}


SPECIAL: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note": {"num_key_value_heads": 4},
    "dots3_note_text": {"num_key_value_heads": 4},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "use_mamba_kernels": False},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "bamba": {"attn_layer_indices": [1, 3]},
    "falcon_h1": {"mamba_d_ssm": 64},
    "lfm2": CONVOLUTIONS,
    "lfm2_moe": CONVOLUTIONS,
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "ssm_state_size": 4},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "n_mamba_heads": 8, "use_mem_rope": True},
    "zaya": {"num_experts_per_tok": 1},
    "xmod": {"default_language": "en_XX"},
    "reformer": {"is_decoder": True},
    # of models that read images, too
    "chameleon": {"vocabulary_map": {"<image>": 3}, "vq_config": {"base_channels": 32, "num_embeddings": 64}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": PLAIN}}},
    "cosmos3_edge": {"text_config": _three_rows(2, 1, 1)},
    "deepseek_ocr2": {"text_config": {"num_experts_per_tok": 2, "mlp_layer_types": ["dense", *["sparse"] * 3]}},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}},
    "ernie4_5_vl_moe": {"text_config": {"moe_intermediate_size": [32, 32], **_three_rows(1, 1, 2)}},
    "glm46v": {"text_config": _three_rows(2, 1, 1)},
    "glm4v": {"text_config": _three_rows(2, 1, 1)},
    "glm4v_moe": {"text_config": _three_rows(1, 1, 0, partial_rotary_factor=0.5)},
    "glm_ocr": {"text_config": _three_rows(2, 1, 1), "vision_config": {"depth": 2, "out_hidden_size": 32}},
    "glmga": {"text_config": _three_rows(2, 1, 1)},
    "granite4_vision": {
        "deepstack_layer_map": [[0, 0]],
        "spatial_target_layers": [0],
        "downsample_rate": "1/2",
        "vision_config": {"hidden_size": 64},
    },
    "granite_docling": {"vision_config": {"out_hidden_size": 32}},
    "hunyuan_vl": {"text_config": _three_rows(1, 1, 1, 1)},
    "janus": {
        "vq_config": {"base_channels": 32, "num_embeddings": 64, "projection_dim": 32, "image_token_embed_dim": 32},
        "vision_config": {"projection_dim": 32},
    },
    "lfm2_vl": {"text_config": CONVOLUTIONS},
    "molmo2": {
        "vision_config": {"image_size": [32, 32]},
        "adapter_config": {"vision_feature_layer": [0, 1], "vit_layers": [0, 1]},
    },
    "muse_glimmer": PROJECTED,
    "muse_spark": {**PROJECTED, "audio_config": {"out_hidden_size": 32, "hidden_sizes": [32] * 4}},
    "paddleocr_vl": {"text_config": _three_rows(2, 1, 1)},
    "qwen2_5_omni_thinker": {"text_config": _three_rows(2, 1, 1), "vision_start_token_id": 3},
    "qwen2_5_vl": {"text_config": _three_rows(2, 1, 1), "vision_config": {"depth": 4}},
    "qwen2_vl": {"text_config": _three_rows(2, 1, 1), "vision_config": {"depth": 4, "embed_dim": 32}},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 3},
    "qwen3_vl": {"text_config": _three_rows(2, 1, 1), "vision_config": {"depth": 4}},
    "step3p7": {"text_config": {"sliding_window": 6}},
}
"""Values that the defaults of a config leave out, or that real models of this type have."""


def names() -> list[str]:
    """The model types of transformers' registries."""
    return sorted({config.model_type for registry in LOADERS for config in getattr(transformers, registry)})


def reads_images(name: str) -> bool:
    """True for types whose models are in the registry of those that read images alone."""
    return transformers.CONFIG_MAPPING[name] not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING


def config_of(name: str) -> Any:
    """A small config of a model type, of its text decoder where it has one of its own."""
    config = shrink(transformers.CONFIG_MAPPING[name], SPECIAL.get(name, {}))
    text = config.get_text_config()
    return text if class_of(type(config)).config_class is type(text) else config


def class_of(config_class: Any) -> Any:
    """The class of the models that write texts by such configs."""
    classes = find_classes(config_class)
    assert classes is not None, "the names are of the registries"
    return classes[0]


def shrink(config_class: Any, changes: dict[str, Any]) -> Any:
    """A small config of a class; changes of its parts stand under their names."""
    default = config_class()
    known = {*vars(default), *getattr(default, "attribute_map", {})}
    parts = getattr(default, "sub_configs", {})
    sizes = {
        key: value
        for key, value in SMALL.items()
        if key in known and (value is None or key in ALWAYS or _value(default, key) is not None)
    }
    if "qk_rope_head_dim" in known:
        sizes.pop("head_dim", None)
        sizes["num_key_value_heads"] = 4  # latent attention has as many as queries
    for key in ("layer_types", "mlp_layer_types"):
        if key in vars(default) and _value(default, key):
            sizes[key] = _four(_value(default, key))
    for key in parts:
        part = _value(default, key)
        if part is not None:
            sizes[key] = shrink(type(part), changes.get(key, {})).to_dict()
    return config_class(**sizes | {key: value for key, value in changes.items() if key not in parts})


def _value(config: Any, key: str) -> Any:
    """A setting, or None where the config has none or has one for each layer."""
    try:
        return getattr(config, key, None)
    except Exception:  # a class that is private to transformers
        return None


def _four(kinds: Sequence[str]) -> list[str]:
    """Four layers with every kind that the list has."""
    distinct = list(dict.fromkeys(kinds))[:4]
    return [*distinct, *[distinct[-1]] * (4 - len(distinct))]
