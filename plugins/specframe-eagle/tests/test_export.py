"""Exports: what an engine reads is what was trained, bit by bit, and what it would drop is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import eagle3_texts as texts3
import eagle_texts as texts
import pytest
import torch
from safetensors.torch import load_file

from specframe import WeightsError
from specframe.components.heads import Trimmed
from specframe.testing import GivenSession, GrowingTree, random_teacher, shake
from specframe_eagle.drafter import Eagle
from specframe_eagle.eagle3 import Eagle3

IDS = "eagle_aux_hidden_state_layer_ids"
FIRST, THREE_ONE, OTHERS, SHARED, DEEP = texts3.NETWORKS
GOES = [
    *((FIRST, form) for form in ("vllm", "sglang", "speculators", "eagle")),
    *((THREE_ONE, form) for form in ("vllm", "sglang", "speculators")),
    *((OTHERS, form) for form in ("vllm", "speculators")),
    *((SHARED, form) for form in ("vllm", "sglang", "speculators")),
]


def rounded(drafter: Eagle3 | Eagle) -> None:
    """Makes the weights what bfloat16 can hold, as a stored drafter's are."""
    drafter.module.bfloat16().float()


def proposed(drafter: Any) -> torch.Tensor:
    """The logits below a root, after five pairs."""
    rows = GivenSession.of(random_teacher(drafter.target, 1, 8))
    drafter.open(1, 12)
    drafter.commit(rows.admit([5]))
    logits: torch.Tensor = drafter.expand(GrowingTree(rows.root, texts3.VOCAB).frontier([0])).logits
    return logits


READ = {
    "vllm": {IDS: [2, 4, 5], "draft_vocab_size": 6, "norm_before_residual": False, "attention_bias": False},
    "sglang": {f"eagle_config.{IDS}": [1, 3, 4], "draft_vocab_size": 6, "tie_word_embeddings": False},
}
"""Entries that the engines' loaders read, by form: the table of docs/howto/export.md."""


@pytest.mark.parametrize("form", READ)
def test_every_entry_that_a_loader_reads_is_written(form: str) -> None:
    made = texts3.bound(torch.float32).export(form)
    for entry, value in READ[form].items():
        found: Any = made.config
        for name in entry.split("."):
            found = found[name]
        assert found == value, entry
    assert made.config["eagle_config"]["use_aux_hidden_state"] is True
    layer = {"hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "hidden_act"}
    assert layer | {"rms_norm_eps", "max_position_embeddings", "vocab_size"} <= made.config.keys()
    assert made.config["num_hidden_layers"] == 1 and made.config["rope_theta"] == 10000.0


@pytest.mark.parametrize(("options", "form"), GOES)
def test_what_an_engine_reads_is_what_was_trained(options: dict[str, Any], form: str, tmp_path: Path) -> None:
    drafter = texts3.bound(torch.float32, **options)
    rounded(drafter)
    made = drafter.export(form)
    made.write(tmp_path)
    stored = load_file(tmp_path / made.file)
    layer = "layers.0." if form == "speculators" else "midlayer."
    assert f"{layer}self_attn.q_proj.weight" in stored
    assert ("embed_tokens.weight" in stored) == (form == "speculators")
    assert stored["lm_head.weight"].shape == (6, 8) and stored["d2t"].dtype == torch.int64
    again = Eagle3(weights=str(tmp_path))
    again.bind(texts3.target(torch.float32))
    assert again.layout.taps == drafter.layout.taps and again.layout.switches == drafter.layout.switches
    assert again.support.tolist() == drafter.support.tolist()
    torch.testing.assert_close(proposed(again), proposed(drafter), rtol=2e-2, atol=2e-2)
    if options.get("own_head") is not False:
        assert torch.equal(proposed(again), proposed(drafter))
    again.save(tmp_path / "again")
    ours = load_file(tmp_path / "again" / "model.safetensors")
    assert ours.keys() == stored.keys() and all(torch.equal(ours[name], stored[name]) for name in stored)


def test_tap_ids_are_written_as_each_engine_counts_them() -> None:
    drafter = texts3.bound(torch.float32, taps=[0, 2, 6])
    for form in ("vllm", "sglang"):
        config = drafter.export(form).config
        assert config[IDS] == [1, 3, 7] and config["eagle_config"][IDS] == [0, 2, 6]
        assert config["norm_before_residual"] is False and config["tie_word_embeddings"] is False
        assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
        assert config["draft_vocab_size"] == 6 and config["vocab_size"] == texts3.VOCAB
        assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    config = drafter.export("speculators").config
    assert config[IDS] == [1, 3, 7] and "eagle_config" not in config
    assert config["transformer_layer_config"]["model_type"] == "llama"
    two = texts3.bound(torch.float32, taps=[0, 5]).export("speculators").config
    assert two["transformer_layer_config"]["num_aux_hidden_states"] == 2
    assert texts3.bound(torch.float32, layer="qwen3").export("vllm").config["architectures"] == [
        "Eagle3Qwen3ForCausalLM"
    ]


def test_the_checklist_lists_what_will_be_read() -> None:
    checklist = dict(texts3.bound(torch.float32, fc_norm=True).export("vllm").checklist)
    assert checklist["reads the outputs of"].startswith("layers [1, 3, 4], counted from 0; written as [2, 4, 5]")
    assert checklist["switches"] == "fc_norm" and checklist["draft vocabulary"] == "6 of 11 tokens, by d2t"


@pytest.mark.parametrize(
    ("options", "form", "message"),
    [
        ({"norm_before_residual": True}, "sglang", "norm_before_residual is not known there"),
        ({"layer": "qwen3"}, "sglang", "query and key norms are not read there"),
        ({"layer": "qwen3"}, "eagle", "query and key norms are not read there"),
        ({"fc_norm": True}, "eagle", "fc_norm is not known there"),
        ({"taps": [0, 2, 6]}, "eagle", r"always \[1, 3, 4\]"),
        *(({"taps": [0, 2, 7]}, form, "the output of layer 7, the target's last") for form in Eagle3.forms),
    ],
)
def test_what_an_engine_would_drop_is_refused(options: dict[str, Any], form: str, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        texts3.bound(torch.float32, **options).export(form)


def eagle(kind: str = "llama", **options: Any) -> Eagle:
    drafter = texts.bound(kind, torch.float32, **options)
    rounded(drafter)
    return drafter


@pytest.mark.parametrize(("bias", "form"), [(False, "vllm"), (False, "sglang"), (True, "sglang"), (True, "eagle")])
def test_eagle_goes_out_and_comes_back(bias: bool, form: str, tmp_path: Path) -> None:
    drafter = eagle(bias=bias)
    made = drafter.export(form)
    made.write(tmp_path)
    stored, config = load_file(tmp_path / "model.safetensors"), json.loads((tmp_path / "config.json").read_text())
    assert ("fc.bias" in stored) == config["bias"] == (bias or form == "sglang")
    if form == "sglang" and not bias:
        assert not stored["fc.bias"].any()
        assert config["architectures"] == ["LlamaForCausalLMEagle"]
    assert ("embed_tokens.weight" in stored) == (form == "eagle")
    again = Eagle(weights=str(tmp_path))
    again.bind(texts.target(dtype=torch.float32))
    assert torch.equal(proposed(again), proposed(drafter))


def test_a_bias_that_vllm_drops_is_in_the_embedding(tmp_path: Path) -> None:
    drafter = eagle(bias=True)
    drafter.export("vllm").write(tmp_path)
    stored, fc = load_file(tmp_path / "model.safetensors"), drafter.module.fc
    assert "fc.bias" not in stored and stored["embed_tokens.weight"].dtype == torch.float32
    tokens, features = torch.arange(texts3.VOCAB), torch.randn(texts3.VOCAB, 8)
    read = torch.cat([stored["embed_tokens.weight"], features], 1) @ stored["fc.weight"].float().T
    ours = fc(torch.cat([drafter.target.embed(tokens), features], 1))
    torch.testing.assert_close(read, ours, rtol=1e-4, atol=1e-4)
    assert (fc.bias.abs() > 1e-2).any()


def test_a_bias_that_no_embedding_can_give_is_refused() -> None:
    drafter = eagle(bias=True)
    drafter.module.fc.weight.data[0, :8] = 0  # the embedding has no part in this output
    with pytest.raises(WeightsError, match="the embedding cannot give it: train one with bias: false"):
        drafter.export("vllm")


@pytest.mark.parametrize(
    ("kind", "options", "form", "message"),
    [
        ("llama", texts.FSPAD, "sglang", "FSPAD's parts, are not known there"),
        ("qwen3", {"bias": False}, "vllm", "its layer is qwen3's"),
        ("qwen2", {"bias": False}, "eagle", "with biases"),
    ],
)
def test_an_eagle_that_an_engine_would_misread_is_refused(
    kind: str, options: dict[str, Any], form: str, message: str
) -> None:
    with pytest.raises(WeightsError, match=message):
        eagle(kind, **options).export(form)


def test_each_drafter_refuses_the_other_s_checkpoints(tmp_path: Path) -> None:
    texts3.bound(torch.float32).export("vllm").write(tmp_path / "three")
    eagle(bias=False).export("vllm").write(tmp_path / "one")
    for one, folder, message in [
        (Eagle(weights=str(tmp_path / "three")), "three", "use the drafter eagle3"),
        (Eagle3(weights=str(tmp_path / "one")), "one", "use the drafter eagle"),
    ]:
        with pytest.raises(WeightsError, match=message):
            one.bind(texts3.target(torch.float32))
        assert (tmp_path / folder).is_dir()


def test_a_draft_vocabulary_of_the_recipe_is_named_where_it_is_left_out() -> None:
    drafter = Eagle(bias=False, head=Trimmed(keep=4))
    drafter.bind(texts.target(dtype=torch.float32))
    shake(drafter.module)
    made = drafter.export("vllm")
    assert "draft vocabulary of 4 tokens is left out" in dict(made.checklist)["LM head"]
    assert made.omitted == ("drafter.head=null",)


@pytest.mark.parametrize("form", ["vllm", "sglang", "speculators", "eagle"])
def test_several_layers_of_eagle3_are_refused(form: str) -> None:
    with pytest.raises(WeightsError, match="it has 2 decoder layers, and one is read there"):
        texts3.bound(torch.float32, **DEEP).export(form)
