"""EAGLE-3 in a GGUF file: names, shapes and settings as llama.cpp's converter and `eagle3.cpp` have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import eagle3_texts as texts3
import gguf
import pytest
import torch

from specframe import WeightsError
from specframe.components.heads import Trimmed
from specframe.components.targets.hf import HFTarget
from specframe_eagle.eagle3 import Eagle3


def unpaired(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Inverts the converter's `permute`: from neighbours to the halves that transformers rotates."""
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("options", [{}, {"norm_before_fc": True, "norm_before_residual": True}])
def test_llama_cpp_finds_what_it_looks_for(options: dict[str, Any], tmp_path: Path) -> None:
    target = HFTarget(model="zoo://talk-7m", dtype="float32")
    drafter = Eagle3(head=Trimmed(keep=600), **options)
    drafter.bind(target)
    made = drafter.export("gguf")
    made.write(tmp_path)
    read = gguf.GGUFReader(tmp_path / "model.gguf")
    value = {name: field.contents() for name, field in read.fields.items()}
    stored = {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in read.tensors}
    own, before = drafter.published(), bool(options)
    width, vocab = target.config.hidden_size, target.config.vocab_size
    assert value["general.architecture"] == "eagle3"
    assert value["eagle3.target_layers"] == [tap + 1 for tap in drafter.layout.taps]  # inputs of layers
    assert value["eagle3.target_hidden_size"] == width and value["eagle3.block_count"] == 1
    assert value["eagle3.norm_before_residual"] is before and value["eagle3.norm_before_fc"] is before
    assert len(value["tokenizer.ggml.tokens"]) == vocab
    assert stored["d2t"].dtype == torch.int64 and torch.equal(stored["d2t"], drafter.support)
    assert stored["output.weight"].shape == (600, width) and stored["blk.0.attn_q.weight"].shape[1] == 2 * width
    pairs = {
        "fc.weight": "fc.weight",
        "midlayer.hidden_norm.weight": "blk.0.attn_norm_2.weight",
        "midlayer.input_layernorm.weight": "blk.0.attn_norm.weight",
        "midlayer.post_attention_layernorm.weight": "blk.0.ffn_norm.weight",
        "midlayer.self_attn.v_proj.weight": "blk.0.attn_v.weight",
        "midlayer.self_attn.o_proj.weight": "blk.0.attn_output.weight",
        **{f"midlayer.mlp.{part}_proj.weight": f"blk.0.ffn_{part}.weight" for part in ("gate", "up", "down")},
        "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
        **({"input_norm.weight": "enc.output_norm.weight"} if before else {}),
    }
    for theirs, name in pairs.items():
        assert torch.equal(stored.pop(name), own[theirs].float()), name
    for part, heads in (("q", "head_count"), ("k", "head_count_kv")):
        rows = unpaired(stored.pop(f"blk.0.attn_{part}.weight"), value[f"eagle3.attention.{heads}"])
        assert torch.equal(rows, own[f"midlayer.self_attn.{part}_proj.weight"].float())
    assert stored.keys() == {"d2t"}, "llama.cpp refuses a tensor that it has no place for"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"fc_norm": True}, "fc_norm is not known there: train one with fc_norm: false"),
        ({"norm_output": True}, "norm_output is not known there"),
        ({"taps": [0, 5]}, "it reads 2 layers, and three are read there"),
        ({"layer": "qwen3"}, "its layers are qwen3's"),
        ({}, "its tokenizer is no byte-level BPE"),
    ],
)
def test_what_llama_cpp_would_refuse_or_lose_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(WeightsError, match=reason):
        texts3.bound(torch.float32, **options).export("gguf")
