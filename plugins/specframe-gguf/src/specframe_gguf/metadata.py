"""Keys of a file's metadata: those that are read, that have no effect, and that are refused or listed in a warning."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from specframe import InputError
from specframe_gguf.header import GGUFFile

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

log = logging.getLogger(__name__)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


OTHERS = frozenset({"general", "split", "quantize", "imatrix"})
"""Name spaces of keys about the file, which do not affect the model's results or tokens."""

READ = _names(
    "block_count context_length embedding_length feed_forward_length attention.head_count attention.head_count_kv "
    "attention.key_length attention.layer_norm_rms_epsilon rope.dimension_count rope.freq_base rope.scale_linear "
    "rope.scaling.type rope.scaling.factor rope.scaling.original_context_length rope.scaling.attn_factor "
    "rope.scaling.yarn_attn_factor rope.scaling.yarn_ext_factor rope.scaling.yarn_beta_fast "
    "rope.scaling.yarn_beta_slow rope.scaling.yarn_log_multiplier"
)
"""Keys of the model that are read, without the architecture's name."""
READ_OF_GEMMA = _names(
    "attention.scale attention.sliding_window attention.sliding_window_pattern attn_logit_softcapping "
    "final_logit_softcapping rope.freq_base_swa"
)
HARMLESS = _names(
    "vocab_size tensor_data_layout pooling_type rope.scaling.finetuned leading_dense_block_count "
    "attention.layer_norm_epsilon"
)
"""Keys that have no effect in supported models."""
OF_TOKENIZERS = _names(
    "ggml.model ggml.pre ggml.tokens ggml.token_type ggml.scores ggml.merges ggml.bos_token_id ggml.eos_token_id "
    "ggml.eot_token_id ggml.eom_token_id ggml.unknown_token_id ggml.padding_token_id ggml.add_bos_token "
    "ggml.add_eos_token chat_template ggml.token_type_count ggml.seperator_token_id ggml.separator_token_id "
    "ggml.mask_token_id ggml.cls_token_id ggml.prefix_token_id ggml.suffix_token_id ggml.middle_token_id "
    "ggml.fim_pre_token_id ggml.fim_suf_token_id ggml.fim_mid_token_id ggml.fim_pad_token_id ggml.fim_rep_token_id "
    "ggml.fim_sep_token_id chat_templates"
)
"""Keys of the tokenizer that are read, or that change no tokens."""
TOKENIZER_DEFAULTS = {
    "ggml.add_sep_token": (False,),
    "ggml.remove_extra_whitespaces": (False,),
    "ggml.precompiled_charsmap": ([],),
}
"""Further keys of the tokenizer, with the values for which they have no effect."""
NAMED = {f"ggml.{kind}_token_id": kind for kind in ("bos", "eos", "eot", "eom", "unknown", "padding")}
"""Keys that name special tokens, with the purpose of each."""
WINDOW = "attention.sliding_window"
OFF = _names(
    "expert_count expert_used_count expert_shared_count nextn_predict_layers use_parallel_residual "
    "attention.max_alibi_bias attention.clamp_kqv attention.temperature_scale attention.temperature_length "
    "attention.shared_kv_layers attention.key_length_mla attention.value_length_mla attn_logit_softcapping "
    "final_logit_softcapping router_logit_softcapping swiglu_clamp_exp swiglu_clamp_shexp activation_sparsity_scale "
    "rescale_every_n_layers token_shift_count moe_every_n_layers num_deepstack_layers"
)
"""Keys that change the model's results unless they are 0 or false."""


def require_numbers(file: GGUFFile, names: frozenset[str]) -> None:
    """Raises InputError for keys of the model, without the architecture's name, that are not numbers."""
    for name in sorted(names - {"rope.scaling.type"}):
        value = file.get(name, 0)
        if not all(isinstance(part, int | float) for part in (value if isinstance(value, list) else [value])):
            raise InputError(
                f"{file.path} cannot be read as GGUF: its {file.architecture}.{name} is {value!r}, no number"
            )


def require_known(file: GGUFFile, config: PreTrainedConfig, read: Collection[str]) -> None:
    """Logs one warning that lists the unused keys of the model and the tokenizer.

    `read` are the keys of the model from which the config was made. Raises InputError for another key that changes the
    model's results.
    """
    neutral = _neutral(config)
    unread = []
    for key, value in file.metadata.items():
        space, _, name = key.partition(".")
        if space == "tokenizer":
            known = name in OF_TOKENIZERS or name.startswith("chat_template.") or _is_default(file, name, value)
            if not known or (name in NAMED and file.token(NAMED[name]) is None):
                unread.append(key)
        elif space != file.architecture:
            if space not in OTHERS:
                unread.append(key)
        elif name in read or name in HARMLESS or (name == WINDOW and _is_wide(value, config)):
            continue
        elif name not in neutral:
            unread.append(key)
        elif not all(_is_near(part, neutral[name]) for part in (value if isinstance(value, list) else [value])):
            raise InputError(
                f"{file.path} has {key} = {value}, which changes the model's numbers and is not supported; take the "
                "model's safetensors"
            )
    if unread:
        log.warning(
            "%s: its metadata has keys that are not read, and that may change tokens or numbers: %s",
            file.path,
            ", ".join(unread),
        )


def _is_default(file: GGUFFile, name: str, value: Any) -> bool:
    """Returns whether a key of the tokenizer changes no tokens."""
    if name == "ggml.add_space_prefix":  # used by character-based tokenizers; byte-level ones add no space
        return not value or file.metadata.get("tokenizer.ggml.model") == "llama"
    return value in TOKENIZER_DEFAULTS.get(name, ())


def _neutral(config: Any) -> dict[str, tuple[float, ...]]:
    """Returns the keys that change the model's results, with the values for which they do not."""
    head = float(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    scale = config.hidden_size**0.5 if "gemma" in config.model_type else 1.0
    return {
        **dict.fromkeys(OFF, (0.0,)),
        **dict.fromkeys(("logit_scale", "residual_scale", "attention.output_scale", "rope.scaling.alpha"), (0.0, 1.0)),
        **dict.fromkeys(("attention.value_length", "attention.key_length_swa", "attention.value_length_swa"), (head,)),
        "attention.causal": (1.0,),
        "attention.scale": (0.0, head**-0.5),
        WINDOW: (0.0,),
        "embedding_scale": (0.0, scale),
        "embedding_length_out": (float(config.hidden_size),),
        "rope.dimension_count_swa": (head,),
    }


def _is_wide(window: Any, config: Any) -> bool:
    return isinstance(window, int) and window >= config.max_position_embeddings


def _is_near(value: Any, wanted: tuple[float, ...]) -> bool:
    return isinstance(value, int | float) and any(math.isclose(value, same, rel_tol=1e-4) for same in wanted)
