"""Checkpoints: what is stored is published, published forms come in, and what leaves open what it means is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dflash_texts as texts
import pytest
import torch
from dflash_texts import again, change, stored
from safetensors.torch import load_file, save_file

from specframe import WeightsError
from specframe.components.heads import Trimmed
from specframe.neural import checkpoint
from specframe.testing import check_plugin, tiny_target
from specframe_blocks.dflash.dflash import DFlash
from specframe_blocks.dflash.dspark import DSpark
from tests.parts import split

SHORT = {"block_size": 4, "layers": 2}


@pytest.mark.parametrize("options", texts.BLOCKS)
def test_dflash_comes_back_as_it_was(options: dict[str, Any], tmp_path: Path) -> None:
    drafter = texts.dflash(**options)
    folder = stored(tmp_path, drafter)
    given = {name: value for name, value in options.items() if name in ("causal", "from_anchor")}
    loaded = again(folder, **given)
    torch.testing.assert_close(texts.proposed(loaded), texts.proposed(drafter), rtol=0, atol=0)
    assert loaded.layout.plan == drafter.layout.plan and loaded.taps == drafter.taps


@pytest.mark.parametrize("options", texts.SPARKS)
def test_dspark_comes_back_as_it_was(options: dict[str, Any], tmp_path: Path) -> None:
    drafter = texts.dspark(**options)
    loaded = again(stored(tmp_path, drafter), DSpark, from_anchor=options.get("from_anchor", True))
    torch.testing.assert_close(texts.proposed(loaded), texts.proposed(drafter), rtol=0, atol=0)
    assert loaded.layout.markov == drafter.layout.markov


@pytest.mark.parametrize("kind", [DFlash, DSpark])
def test_a_drafter_in_8_bits_is_the_whole_one_rounded(kind: type[DFlash], tmp_path: Path) -> None:
    target = tiny_target(size=64, layers=texts.LAYERS, dtype=torch.float32)
    whole = kind(block_size=4, layers=1)
    whole.bind(target)
    whole.save(tmp_path / "whole")
    checkpoint.shrink(tmp_path / "whole", tmp_path / "small")
    small = kind(block_size=4, weights=str(tmp_path / "small"))
    small.bind(target)
    weights, rounded = (drafter.network.state_dict() for drafter in (whole, small))
    assert weights.keys() == rounded.keys()
    for name, weight in weights.items():
        assert (rounded[name] - weight).abs().max() <= weight.abs().max() / 100, name


def test_a_draft_vocabulary_s_biases_come_back(tmp_path: Path) -> None:
    drafter = texts.dspark(head=Trimmed(keep=6))
    loaded = again(stored(tmp_path, drafter), DSpark, head=Trimmed(keep=6))
    torch.testing.assert_close(texts.proposed(loaded), texts.proposed(drafter), rtol=0, atol=0)
    with pytest.raises(WeightsError, match="biases for 6 tokens, and its head has 11"):
        again(tmp_path, DSpark)


def test_the_stored_folder_is_the_published_one(tmp_path: Path) -> None:
    stored(tmp_path, texts.dspark(layers=1, block_size=4))
    config, tensors = json.loads((tmp_path / "config.json").read_text()), load_file(tmp_path / "model.safetensors")
    attention = [f"layers.0.self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")]
    others = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
    assert set(tensors) == {
        *(f"{name}.weight" for name in attention),
        *(f"layers.0.{name}.weight" for name in others),
        "fc.weight",
        "hidden_norm.weight",
        "norm.weight",
        "markov_head.markov_w1.weight",
        "markov_head.markov_w2.weight",
        "confidence_head.proj.weight",
        "confidence_head.proj.bias",
    }
    assert config["architectures"] == ["Qwen3DSparkModel"] and config["model_type"] == "qwen3"
    assert config["dflash_config"] == {
        "block_size": 4,
        "mask_token_id": 10,
        "target_layer_ids": [4],
        "causal": False,
        "sample_from_anchor": True,
        **config["dspark_config"],
    }
    assert config["dspark_config"] == {
        "markov_rank": 3,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }


def test_the_form_of_speculators_counts_hidden_states(tmp_path: Path) -> None:
    drafter = texts.dflash()
    config = json.loads((stored(tmp_path, drafter) / "config.json").read_text())
    layer = {name: value for name, value in config.items() if name not in ("dflash_config", "block_size")}
    wrapped = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "transformer_layer_config": layer,
        "block_size": 4,
        "mask_token_id": 10,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in drafter.layout.plan.taps],
        "sample_from_anchor": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(wrapped))
    torch.testing.assert_close(texts.proposed(again(tmp_path)), texts.proposed(drafter), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "no block drafter that is known here"),
        ({"architectures": ["Qwen3DSparkModel"]}, "is one of dspark: use the drafter dspark"),
        ({"hidden_size": 16}, "hidden_size: the checkpoint has 16, needed is 8"),
        ({"vocab_size": 12}, "vocab_size: the checkpoint has 12, needed is 11"),
        ({"model_type": "llama"}, "has layers of 'llama'"),
        ({"target_layer_ids": None}, "does not record target_layer_ids"),
        ({"mask_token_id": None, "block_size": None}, "does not record block_size, mask_token_id"),
        ({"target_layer_ids": [1, 8]}, "reads the outputs of layers [1, 8], and the target has 0 to 7"),
        ({"aux_hidden_state_layer_ids": [1, 4]}, "names two sets of layers"),
        ({"mask_token_id": 11}, "mask_token_id is 11, and the target has tokens 0 to 10"),
        ({"block_size": 8}, "block_size: the checkpoint has 8, the recipe 4"),
        ({"causal": True}, "causal: the checkpoint has True, the recipe False"),
        ({"layer_types": ["sliding_attention"]}, "layer_types: it lists 1 layers, and there are 2"),
        ({"layer_types": ["sliding_attention"] * 2}, "a sliding window are not supported in a drafter of no sliding_"),
        ({"layer_types": ["sliding_attention", "chunked"], "sliding_window": 3}, "layers of chunked are not supported"),
        ({"draft_vocab_size": 6}, "has draft_vocab_size 6, and no LM head"),
        ({"num_hidden_layers": 3}, "layers.2.input_layernorm.weight: missing"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(entries: dict[str, Any], message: str, tmp_path: Path) -> None:
    change(stored(tmp_path, texts.dflash()), **entries)
    with pytest.raises(WeightsError) as caught:
        again(tmp_path)
    assert message in str(caught.value)


def test_tensors_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    path = stored(tmp_path, texts.dflash()) / "model.safetensors"
    tensors = load_file(path)
    tensors["fc.weight"][0, 0] = torch.nan
    tensors["extra"] = tensors.pop("norm.weight")
    save_file(tensors, path)
    with pytest.raises(WeightsError) as caught:
        again(tmp_path)
    assert all(line in str(caught.value) for line in ("extra: unexpected", "norm.weight: missing", "not finite"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(WeightsError, match="cannot read"):
        again(tmp_path)
    path.unlink()
    with pytest.raises(WeightsError, match=r"holds no model\.safetensors.*specframe import RECIPE"):
        again(tmp_path)


def reduce(folder: Path, change: dict[str, torch.Tensor | None]) -> None:
    """Gives the folder's drafter an LM head over six tokens, and then changes tensors; None removes one."""
    path = folder / "model.safetensors"
    tokens = torch.tensor([0, 1, 4, 5, 8, 10])
    tensors = load_file(path)
    chance = torch.Generator().manual_seed(3)
    tensors["lm_head.weight"] = torch.randn(6, 8, generator=chance).bfloat16()
    tensors |= {"d2t": tokens - torch.arange(6), "t2d": torch.zeros(11, dtype=torch.bool).index_fill(0, tokens, True)}
    tensors |= change
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


@pytest.mark.parametrize("listed", [True, False])
def test_an_lm_head_of_its_own_is_read_and_goes_out_bit_by_bit(listed: bool, tmp_path: Path) -> None:
    drafter = texts.dflash()
    reduce(stored(tmp_path / "one", drafter), {} if listed else {"t2d": None})
    loaded = again(tmp_path / "one")
    assert loaded.support.tolist() == [0, 1, 4, 5, 8, 10]
    logits = texts.proposed(loaded)
    assert logits.shape[-1] == 6
    states = loaded._session.draft[0].outputs[:, 0]
    rows = load_file(tmp_path / "one" / "model.safetensors")["lm_head.weight"].double()
    torch.testing.assert_close(logits[:, 0], states @ rows.T)
    loaded.save(tmp_path / "two")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert json.loads((tmp_path / "two" / "config.json").read_text())["draft_vocab_size"] == 6
    with pytest.raises(WeightsError, match=r"has an LM head of its own: leave drafter\.head out"):
        again(tmp_path / "one", head=Trimmed(keep=6))


@pytest.mark.parametrize(
    ("change_of", "message"),
    [
        ({"d2t": None}, "a draft vocabulary of 6 of 11 tokens and no d2t"),
        ({"d2t": torch.zeros(6, dtype=torch.int64) + 9}, "does not give 6 different tokens"),
        ({"t2d": torch.ones(11, dtype=torch.bool)}, "d2t and t2d of .* name different tokens"),
        ({"lm_head.weight": torch.full((6, 8), torch.nan)}, "lm_head.weight: holds values that are not finite"),
    ],
)
def test_a_draft_vocabulary_that_is_not_clear_is_refused(
    change_of: dict[str, torch.Tensor | None], message: str, tmp_path: Path
) -> None:
    reduce(stored(tmp_path, texts.dflash()), change_of)
    with pytest.raises(WeightsError, match=message):
        again(tmp_path)


def test_a_recurrent_state_that_begins_elsewhere_is_refused(tmp_path: Path) -> None:
    stored(tmp_path, texts.dspark(markov="rnn", from_anchor=False))
    change(tmp_path, speculators_model_type="dspark")
    with pytest.raises(WeightsError, match="carries its recurrent state through the root's row"):
        again(tmp_path, DSpark, from_anchor=False)


def test_other_taps_than_the_recipe_s_are_refused(tmp_path: Path) -> None:
    stored(tmp_path, texts.dflash())
    with pytest.raises(WeightsError, match=r"taps: the checkpoint has \[1, 5\], the recipe \[2, 5\]"):
        again(tmp_path, taps=[2, 5])


def test_the_package_keeps_its_contracts() -> None:
    check_plugin("specframe-blocks")


@pytest.mark.parametrize("index", [True, False])
def test_a_checkpoint_in_parts_is_the_whole_one(index: bool, tmp_path: Path) -> None:
    drafter = texts.dspark(head=Trimmed(keep=6))
    first, _ = split(stored(tmp_path, drafter), index=index)
    loaded = again(tmp_path, DSpark, head=Trimmed(keep=6))
    torch.testing.assert_close(texts.proposed(loaded), texts.proposed(drafter), rtol=0, atol=0)
    first.unlink()
    with pytest.raises(WeightsError, match=r"part 1 of 2: .* is absent"):
        again(tmp_path, DSpark, head=Trimmed(keep=6))
