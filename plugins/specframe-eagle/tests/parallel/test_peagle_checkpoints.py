"""P-EAGLE's checkpoints: every published form comes in and goes out bit by bit, and what does not fit is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import eagle3_texts
import peagle_texts as texts
import pytest
import torch
from safetensors.torch import load_file, save_file

from specframe import WeightsError
from specframe.components.heads import Trimmed
from specframe.neural import gather
from specframe.testing import GivenSession, GrowingTree, random_teacher
from specframe_eagle.eagle3 import Eagle3
from specframe_eagle.parallel.drafter import PEagle

IDS = "eagle_aux_hidden_state_layer_ids"


def again(folder: Path, **options: Any) -> PEagle:
    drafter = PEagle(weights=str(folder), levels=texts.LEVELS, **options)
    drafter.bind(eagle3_texts.target(torch.float32))
    return drafter


def stored(folder: Path, form: str = "vllm", **options: Any) -> PEagle:
    """A drafter whose export lies in the folder, its weights what bfloat16 can hold."""
    drafter = texts.round_weights(texts.bound(torch.float32, **options))
    drafter.export(form).write(folder)
    return drafter


def proposed(drafter: PEagle) -> torch.Tensor:
    rows = GivenSession.of(random_teacher(drafter.target, 1, 8))
    drafter.open(1, 12)
    drafter.commit(rows.admit([5]))
    return drafter.expand(GrowingTree(rows.root, texts.VOCAB).frontier([0])).logits


def change(folder: Path, config: dict[str, Any], spoil: Callable[[dict[str, Any]], object] | None = None) -> None:
    """Changes entries of config.json, None removes one; `spoil` changes the tensors."""
    path = folder / "config.json"
    entries = {**json.loads(path.read_text()), **config}
    path.write_text(json.dumps({name: value for name, value in entries.items() if value is not None}))
    if spoil is not None:
        tensors = load_file(folder / "model.safetensors")
        spoil(tensors)
        save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("options", texts.NETWORKS)
def test_what_is_stored_comes_back_bit_by_bit(options: dict[str, Any], tmp_path: Path) -> None:
    drafter = texts.round_weights(texts.bound(torch.float32, **options))
    drafter.save(tmp_path)
    loaded = again(tmp_path, head=Trimmed(keep=6) if options.get("own_head") is False else None)
    for name, tensor in drafter.module.state_dict().items():
        assert torch.equal(tensor, loaded.module.state_dict()[name]), name
    assert torch.equal(proposed(loaded), proposed(drafter))
    assert loaded.layout.mask == drafter.layout.mask and loaded.layout.taps == drafter.layout.taps


@pytest.mark.parametrize("form", ["vllm", "speculators"])
@pytest.mark.parametrize("options", [{}, {"layers": 3, "own_embedding": True}, {"layer": "qwen3", "mask_token": 4}])
def test_exports_come_back_and_go_out_bit_by_bit(form: str, options: dict[str, Any], tmp_path: Path) -> None:
    drafter = stored(tmp_path / "one", form, **options)
    loaded = again(tmp_path / "one")
    if form == "speculators" and "own_embedding" not in options:  # the copy of the target's embedding is rounded
        assert loaded.network.embedding is None
    assert torch.equal(proposed(loaded), proposed(drafter))
    loaded.save(tmp_path / "two")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_the_authors_names_are_read(tmp_path: Path) -> None:
    """Their first layer is `midlayer`, their vector [1, A H], and their config calls the token `ptd_token_id`."""
    drafter = stored(tmp_path, layers=2)

    def rename(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.startswith("layers.0.")]:
            tensors[name.replace("layers.0.", "midlayer.")] = tensors.pop(name)
        tensors["mask_hidden"] = tensors["mask_hidden"][0]

    names = {"architectures": ["LlamaForCausalLMEagle3"], "ptd_token_id": "10"}
    change(tmp_path, {**names, "mask_token_id": None, "pard_token": None}, rename)
    loaded = again(tmp_path)
    assert loaded.layout.mask == 10 and torch.equal(proposed(loaded), proposed(drafter))
    loaded.save(tmp_path / "two")
    one, two = (load_file(folder / "model.safetensors") for folder in (tmp_path, tmp_path / "two"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_what_vllm_reads(tmp_path: Path) -> None:
    drafter = texts.bound(torch.float32, layers=2, taps=[0, 2, 6])
    made = drafter.export("vllm")
    config = made.config
    assert config["architectures"] == ["PeagleLlamaForCausalLM"] and config["num_hidden_layers"] == 2
    assert config["mask_token_id"] == config["pard_token"] == drafter.layout.mask == 10
    assert config[IDS] == [1, 3, 7] and config["eagle_config"][IDS] == [0, 2, 6]
    assert config["norm_before_residual"] is False
    assert '"num_speculative_tokens": 3, "parallel_drafting": true}' in made.command
    assert made.tensors["mask_hidden"].shape == (1, 1, 24) and "embed_tokens.weight" not in made.tensors
    checklist = dict(made.checklist)
    assert checklist["mask rows"].startswith("token 10 and the vector mask_hidden; 3 tokens")
    assert checklist["layer"].endswith("2 of them")
    wrapped = drafter.export("speculators").config
    assert wrapped["speculators_model_type"] == "peagle" and wrapped["architectures"] == ["PEagleDraftModel"]
    assert wrapped["transformer_layer_config"]["num_hidden_layers"] == 2 and wrapped["mask_token_id"] == 10
    for form in ("vllm", "speculators"):
        with pytest.raises(WeightsError, match="does not pass fc_norm on"):
            texts.bound(torch.float32, fc_norm=True).export(form)
        with pytest.raises(WeightsError, match="the output of layer 7, the target's last"):
            texts.bound(torch.float32, taps=[1, 7]).export(form)


SPOILT = [
    ({"hidden_size": 16}, None, "hidden_size: the checkpoint has 16, needed is 8"),
    ({"vocab_size": 12}, None, "vocab_size: the checkpoint has 12, needed is 11"),
    ({"num_hidden_layers": 2}, None, "layers.1.input_layernorm.weight: missing"),
    ({"architectures": ["DFlashDraftModel"]}, None, "no P-EAGLE drafter that is known here"),
    ({IDS: [2, 4, 9], "eagle_config": None}, None, r"reads the outputs of layers \[1, 3, 8\], and the target has 0"),
    ({"mask_token_id": None, "pard_token": None}, None, "does not record one mask token"),
    ({"mask_token_id": 3}, None, "does not record one mask token"),
    ({"mask_token_id": 11, "pard_token": 11}, None, "its mask token is 11, and the target has tokens 0 to 10"),
    ({"layer_types": ["sliding_attention"]}, None, "a sliding window are not supported in a drafter of no sliding_w"),
    ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 3}, None, "it lists 2 layers, and there are 1"),
    ({}, eagle3_texts.without("mask_hidden"), "mask_hidden: missing"),
    ({}, eagle3_texts.without("d2t"), "a draft vocabulary of 6 of 11 tokens and no d2t"),
    ({}, eagle3_texts.put("mask_hidden", torch.zeros(1, 1, 16)), r"mask_hidden: has shape \[1, 1, 16\], should have"),
    ({}, eagle3_texts.put("norm.weight", torch.full((8,), torch.nan)), "norm.weight: holds values that are not finite"),
    ({}, eagle3_texts.put("embed_tokens.weight", torch.ones(11, 8)), "was trained on another target"),
]


@pytest.mark.parametrize(("config", "spoil", "message"), SPOILT)
def test_what_does_not_fit_is_refused(
    config: dict[str, Any], spoil: Callable[[dict[str, Any]], object] | None, message: str, tmp_path: Path
) -> None:
    stored(tmp_path)
    change(tmp_path, config, spoil)
    with pytest.raises(WeightsError, match=message):
        again(tmp_path)


@pytest.mark.parametrize("form", ["vllm", "speculators"])
def test_layers_with_a_window_are_read_and_written(form: str, tmp_path: Path) -> None:
    stored(tmp_path / "one", layers=2)
    kinds = ["full_attention", "sliding_attention"]
    change(tmp_path / "one", {"layer_types": kinds, "sliding_window": 3})
    loaded = again(tmp_path / "one")
    assert loaded.layout.windows == (None, 3) and loaded.window is None
    loaded.export(form).write(tmp_path / "two")
    written = json.loads((tmp_path / "two" / "config.json").read_text())
    inner = written.get("transformer_layer_config", written)
    assert inner["layer_types"] == kinds and inner["sliding_window"] == 3
    twice = again(tmp_path / "two")
    assert twice.layout.windows == (None, 3) and torch.equal(proposed(twice), proposed(loaded))


@pytest.mark.parametrize("kinds", [[None, 2], [2, 2], [3, None]])
def test_windows_hide_what_lies_after_them_in_decoding_as_in_training(kinds: list[int | None], tmp_path: Path) -> None:
    """Compares what a text's last entry sees through two layers, and the levels below every entry, read at once."""
    plain = stored(tmp_path, layers=2)
    width = next(filter(None, kinds))
    names = ["full_attention" if kind is None else "sliding_attention" for kind in kinds]
    change(tmp_path, {"layer_types": names, "sliding_window": width})
    loaded, teacher = again(tmp_path), random_teacher(plain.target, 1, 12)
    loaded.module.eval()

    def decoded(drafter: PEagle, features: dict[str, torch.Tensor]) -> torch.Tensor:
        rows = GivenSession.of(replace(teacher, features=features))
        drafter.open(1, 16)
        drafter.commit(rows.admit([9]))
        return drafter.expand(GrowingTree(rows.root, texts.VOCAB).frontier([0])).logits

    base = decoded(loaded, dict(teacher.features))
    assert not torch.equal(base, decoded(plain, dict(teacher.features)))
    seen = 9 if None in kinds else 2 * width - 1  # entries 9 - seen .. 8 reach the last one through both layers
    for place in range(9):
        moved = {tap: values.clone() for tap, values in teacher.features.items()}
        for values in moved.values():
            values[:, place] += 1.0
        assert torch.equal(decoded(loaded, moved)[:, :, 0], base[:, :, 0]) == (place < 9 - seen), place
    fused = loaded.fuse(gather(loaded.spec, teacher.features)[:, :9])
    with torch.no_grad():
        made = loaded.read(loaded.unroll(fused, teacher.tokens[:, 1:10]))
    torch.testing.assert_close(made[:, 8], base[:, 0], rtol=1e-4, atol=1e-4)


def test_recipes_that_contradict_the_checkpoint_are_refused(tmp_path: Path) -> None:
    stored(tmp_path)
    for options, message in [
        ({"mask_token": 4}, "has the mask token 10, not 4"),
        ({"own_embedding": True}, "has no embedding of its own"),
        ({"fc_norm": True}, "has no fc_norm"),
        ({"taps": [0, 1, 2]}, "reads the layers"),
    ]:
        with pytest.raises(WeightsError, match=message):
            again(tmp_path, **options)


def test_each_reads_its_own(tmp_path: Path) -> None:
    stored(tmp_path)
    with pytest.raises(WeightsError, match="is one of P-EAGLE: use the drafter peagle"):
        Eagle3(weights=str(tmp_path)).bind(eagle3_texts.target(torch.float32))
    eagle3_texts.bound(torch.float32).save(tmp_path / "three")
    with pytest.raises(WeightsError, match="it is one of EAGLE-3: use the drafter eagle3"):
        again(tmp_path / "three")
