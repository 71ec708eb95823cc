"""GGUF files for llama.cpp: a Llama's tensors and settings under its names, and a byte-level tokenizer.

The rules are those of its converter (`conversion/llama.py`) and loaders (`src/models/llama.cpp`, `eagle3.cpp`).
Tensors are stored in float32, since llama.cpp rounds activations to a matrix's type; `llama-quantize` makes files
smaller.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from specframe.kernel.errors import WeightsError, needs_extra

if TYPE_CHECKING:
    from transformers import PretrainedConfig

USER = "a GGUF file"
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""Kinds of tokens."""


def llama_settings(architecture: str, config: PretrainedConfig) -> dict[str, Any]:
    """The metadata of Llama layers of this config, under an architecture's name: keys and values of a GGUF file."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    theta = (config.rope_parameters or {}).get("rope_theta", 10000.0)
    of_model = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "attention.head_count": heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.dimension_count": size,
        "rope.freq_base": float(theta),
    }
    return {"general.architecture": architecture, **{f"{architecture}.{key}": of_model[key] for key in of_model}}


def llama_reasons(config: PretrainedConfig) -> list[str]:
    """Returns reasons why `llama_settings` cannot describe layers of this config, if any."""
    reasons = []
    if config.model_type != "llama":
        reasons.append(f"its layers are {config.model_type}'s, and Llama's alone are written to GGUF")
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        reasons.append("its projections have biases, which are not read there")
    if (kind := (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")) != "default":
        reasons.append(f"its rotary embedding is scaled ({kind}), which is not written to GGUF")
    return reasons


def llama_tensors(tensors: Mapping[str, Tensor], config: PretrainedConfig) -> dict[str, Tensor]:
    """Llama's tensors under GGUF names, with query and key rows in llama.cpp's order: rotated pairs are adjacent.

    Raises WeightsError for a tensor that a Llama does not have, InputError without the package gguf.
    """
    with needs_extra("gguf", USER):
        import gguf
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    turned = {"q_proj.weight": config.num_attention_heads, "k_proj.weight": config.num_key_value_heads}
    found = {}
    for name, tensor in tensors.items():
        known = names.get_name(name, try_suffixes=(".weight",))
        if known is None:
            raise WeightsError(f"gguf cannot serve this drafter: llama.cpp has no place for its {name}")
        heads = turned.get(".".join(name.split(".")[-2:]))
        found[known] = tensor if heads is None else _paired(tensor, heads)
    return found


def _paired(rows: Tensor, heads: int) -> Tensor:
    """Reorders the rows of a projection [heads * size, D] so that i and i + size / 2 of each head are adjacent."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(rows.shape)


def tokenizer_settings(tokenizer: Any, vocab: int) -> dict[str, Any]:
    """The metadata of a byte-level tokenizer of `vocab` tokens. Raises WeightsError for one of another kind.

    The pattern that splits texts is llama.cpp's default, since a drafter reads the target's tokens, not texts.
    """
    with needs_extra("gguf", USER):
        import gguf
    backend = getattr(tokenizer, "backend_tokenizer", None)
    stored = json.loads(backend.to_str()) if backend is not None else {}
    if stored.get("model", {}).get("type") != "BPE" or "ByteLevel" not in json.dumps(stored.get("decoder")):
        raise WeightsError(
            "gguf cannot serve this drafter: its tokenizer is no byte-level BPE, and no other is written"
        )
    texts = {number: text for text, number in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    kinds = [
        UNUSED if i not in texts else NORMAL if i not in added else CONTROL if added[i].special else USER_DEFINED
        for i in range(vocab)
    ]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        special = gguf.SpecialVocab(Path(folder), load_merges=True, n_vocab=vocab)
    start = tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]
    ids = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "padding": tokenizer.pad_token_id}
    of_tokenizer = {
        "model": "gpt2",
        "pre": "default",
        "tokens": [texts.get(number, f"[PAD{number}]") for number in range(vocab)],
        "token_type": kinds,
        "merges": special.merges,
        "add_bos_token": start,
        **{f"{name}_token_id": number for name, number in ids.items() if number is not None},
    }
    return {f"tokenizer.ggml.{key}": of_tokenizer[key] for key in of_tokenizer}


def write_gguf(path: Path, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Writes a GGUF file, with floating-point tensors in float32. Raises OSError if it cannot be written."""
    with needs_extra("gguf", USER):
        import gguf
    writer = gguf.GGUFWriter(path, settings["general.architecture"])
    kinds: dict[type, Any] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in settings.items():
        if key != "general.architecture":  # the writer has put it there
            kinds[type(value)](key, value)
    for name, tensor in tensors.items():
        data = tensor.detach().cpu()
        writer.add_tensor(name, (data.float() if data.is_floating_point() else data).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
