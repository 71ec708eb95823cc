"""A small random model as a GGUF file, a Llama or another, with or without a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

BYTES = 256
VOCABULARY = BYTES + 2
WIDTH, INNER, HEADS = 32, 64, 2
FURTHER = {
    "qwen2": {"attn_q.bias": WIDTH, "attn_k.bias": WIDTH, "attn_v.bias": WIDTH},
    "qwen3": {"attn_q_norm.weight": WIDTH // HEADS, "attn_k_norm.weight": WIDTH // HEADS},
    "gemma2": {"post_attention_norm.weight": WIDTH, "post_ffw_norm.weight": WIDTH},
    "gemma3": {
        "post_attention_norm.weight": WIDTH,
        "post_ffw_norm.weight": WIDTH,
        "attn_q_norm.weight": WIDTH // HEADS,
        "attn_k_norm.weight": WIDTH // HEADS,
    },
}
"""Weights of a layer of these architectures that Llama's does not have, by name, and how many numbers each is."""


def write_gguf(
    path: Path,
    *,
    tokenizer: bool = True,
    architecture: str = "llama",
    layers: int = 2,
    blocks: str = "Q8_0",
    context: int = 128,
    template: str = "{% for m in messages %}{{ m.content }}{% endfor %}!",
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
    split: int = 0,
) -> Path:
    """Writes the file: width 32, two heads, a byte-level vocabulary of 258 tokens, blocks, float32 norms and biases.

    The embedding, which is the LM head too, has Q8_0 blocks. `metadata` and float32 `tensors` are further ones; a key
    that is None is left out. `split` is the most tensors of a part, where it is written in parts; its path is then the
    first part's.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    head = WIDTH // HEADS
    writer = GGUFWriter(path, architecture, split_max_tensors=split)
    writer.add_name("small")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(head)
    writer.add_vocab_size(VOCABULARY)
    writer.add_key_length(head)
    writer.add_value_length(head)
    if architecture.startswith("gemma"):
        writer.add_sliding_window(16)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(50.0)
        writer.add_final_logit_softcapping(30.0)
    if tokenizer:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([*_bytes(), "ab", "<|end|>"])
        writer.add_token_types([1] * (BYTES + 1) + [3])
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(VOCABULARY - 1)
        writer.add_bos_token_id(VOCABULARY - 1)
        writer.add_chat_template(template)
    add_value = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for key, value in (metadata or {}).items():
        if value is None:
            del writer.kv_data[0][key]
        else:
            add_value.get(type(value), writer.add_array)(key, value)
    draw = np.random.default_rng(0)

    def add(name: str, rows: int, inputs: int = WIDTH) -> None:
        values = draw.normal(0, 0.3, (rows, inputs)).astype(np.float32)
        kind = GGMLQuantizationType["Q8_0" if name == "token_embd" else blocks]
        writer.add_tensor(f"{name}.weight", quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd", VOCABULARY)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(WIDTH, np.float32))
        for name in ("attn_q", "attn_k", "attn_v"):
            add(f"blk.{layer}.{name}", HEADS * head)
        add(f"blk.{layer}.attn_output", WIDTH, HEADS * head)
        add(f"blk.{layer}.ffn_down", WIDTH, INNER)
        for name in ("ffn_up", "ffn_gate"):
            add(f"blk.{layer}.{name}", INNER)
        for name, size in FURTHER.get(architecture, {}).items():
            writer.add_tensor(f"blk.{layer}.{name}", draw.normal(1, 0.1, size).astype(np.float32))
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(path.parent.glob(f"{path.stem}-00001-of-*{path.suffix}")) if split else []
    return parts[0] if parts else path


def _bytes() -> list[str]:
    """The characters that byte-level tokenizers write bytes as."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [value for value in range(BYTES) if value not in shown]
    return [chr(value) for value in shown] + [chr(BYTES + number) for number in range(len(hidden))]
