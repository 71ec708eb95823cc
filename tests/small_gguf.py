"""A small random Llama as a GGUF file, with or without a tokenizer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

BYTES = 256
VOCABULARY = BYTES + 2


def write_gguf(
    path: Path,
    *,
    tokenizer: bool = True,
    architecture: str = "llama",
    layers: int = 2,
    blocks: str = "Q8_0",
    context: int = 128,
) -> Path:
    """Writes the file: width 32, two heads, a byte-level vocabulary of 258 tokens, blocks and float32 norms.

    The embedding, which is the LM head too, has Q8_0 blocks.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, quants

    width, inner, heads = 32, 64, 2
    writer = GGUFWriter(path, architecture)
    writer.add_name("small")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(VOCABULARY)
    if tokenizer:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([*_bytes(), "ab", "<|end|>"])
        writer.add_token_types([1] * (BYTES + 1) + [3])
        writer.add_token_merges(["a b"])
        writer.add_eos_token_id(VOCABULARY - 1)
        writer.add_bos_token_id(VOCABULARY - 1)
        writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}!")
    draw = np.random.default_rng(0)

    def add(name: str, rows: int) -> None:
        values = draw.normal(0, 0.3, (rows, inner if name.endswith("ffn_down") else width)).astype(np.float32)
        kind = GGMLQuantizationType["Q8_0" if name == "token_embd" else blocks]
        writer.add_tensor(f"{name}.weight", quants.quantize(values, kind), raw_dtype=kind)

    add("token_embd", VOCABULARY)
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for layer in range(layers):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", np.ones(width, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_down"):
            add(f"blk.{layer}.{name}", width)
        for name in ("ffn_up", "ffn_gate"):
            add(f"blk.{layer}.{name}", inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _bytes() -> list[str]:
    """The characters that byte-level tokenizers write bytes as."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [value for value in range(BYTES) if value not in shown]
    return [chr(value) for value in shown] + [chr(BYTES + number) for number in range(len(hidden))]
