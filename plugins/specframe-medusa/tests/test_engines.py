"""Exports to vLLM: computed as its source computes them, the files give what the drafter proposes."""

from __future__ import annotations

import json
from pathlib import Path

import medusa_fakes as fakes
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, silu

from specframe.components.heads import FullHead, Trimmed
from specframe.testing import GrowingTree
from specframe_medusa.medusa import Medusa

HEADS = {"own": None, "full": FullHead(), "trimmed": Trimmed(keep=6)}


def read_as_vllm(folder: Path, feature: Tensor) -> Tensor:
    """The logits of all heads after a feature, [heads, V], by the rules of vLLM 0.32's `medusa.py`.

    A tensor is read under its parameter's name alone; biases exist with `medusa_fc_bias`; one LM head serves all with
    `original_lm_head`; a `token_map` is refused, as no weight of the module has that name when its file is read.
    """
    config = json.loads((folder / "config.json").read_text())
    stored = load_file(folder / "model.safetensors")
    assert config["architectures"] == ["MedusaModel"] and config["medusa_fc_bias"]
    vocab = config["vocab_size"]
    assert config["truncated_vocab_size"] == vocab
    shared = stored.pop("lm_head.weight") if config["original_lm_head"] else None
    found = torch.empty(config["num_heads"], vocab)
    for head in range(config["num_heads"]):
        state = feature
        for layer in range(config["num_hidden_layers"]):
            name = f"blocks.{head}.layers.{layer}"
            state = state + silu(linear(state, stored.pop(f"{name}.weight"), stored.pop(f"{name}.bias")))
        weight = stored.pop(f"lm_heads.{head}.weight") if shared is None else shared
        assert weight.shape == (vocab, config["hidden_size"])
        found[head] = linear(state, weight)
    assert not stored, "vLLM would drop what is left"
    return found


@pytest.mark.parametrize("kind", HEADS)
def test_vllm_reads_what_the_drafter_proposes(kind: str, tmp_path: Path) -> None:
    drafter = Medusa(heads=3, layers=2, head=HEADS[kind])
    drafter.bind(fakes.target())
    fakes.shake(drafter.module)
    made = drafter.export("vllm")
    made.write(tmp_path)
    rows = fakes.session(1)
    drafter.open(1, 12)
    committed = rows.admit([5])
    drafter.commit(committed)
    proposal = drafter.expand(GrowingTree(rows.root, fakes.VOCAB).frontier([0]))
    columns = torch.arange(fakes.VOCAB) if proposal.support is None else proposal.support
    read = read_as_vllm(tmp_path, committed.features["last"][0, 4].float())
    torch.testing.assert_close(read[:, columns].double(), proposal.logits[0, 0], rtol=1e-4, atol=1e-4)
    assert torch.equal(read.argmax(1), columns[read[:, columns].argmax(1)]), "only tokens of the draft vocabulary"
    assert dict(made.checklist)["draft vocabulary"].startswith(f"{len(columns)} of {fakes.VOCAB} tokens")
    assert '"num_speculative_tokens": 3' in made.command
