"""EAGLE-3's checkpoints: every published form comes in, and what leaves open what it means is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import eagle3_texts as texts
import pytest
import torch
from eagle3_checkpoints import FORMS, HEAD, IDS, INNER, KEPT, OFFICIAL, SPECULATORS, H, bound, publish
from safetensors.torch import load_file

from specframe import WeightsError
from specframe.neural import TextWindow
from specframe.testing import GivenSession, GrowingTree, random_teacher, tiny_target
from specframe_eagle.convert import convert
from specframe_eagle.eagle3 import Eagle3
from specframe_eagle.rollout import TrainingTimeTest
from tests.parts import split


@pytest.mark.parametrize("form", FORMS)
def test_a_published_checkpoint_comes_in_and_goes_out_bit_by_bit(form: str, tmp_path: Path) -> None:
    config, taps = FORMS[form]
    publish(tmp_path / "theirs", config)
    drafter = bound(tmp_path / "theirs")
    layout = drafter.layout
    assert layout.taps == taps and drafter.support.tolist() == [0, 1, 4, 5, 8, 10]
    assert [layout.switches.norm_before_residual, layout.switches.norm_output] == [form == "vllm"] * 2
    drafter.save(tmp_path / "ours")
    theirs, ours = (load_file(tmp_path / place / "model.safetensors") for place in ("theirs", "ours"))
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        assert torch.equal(tensor, ours[name]) and tensor.dtype == ours[name].dtype, name
    stored = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert stored[IDS] == [tap + 1 for tap in taps] and stored["eagle_config"][IDS] == list(taps)
    again, rows = bound(tmp_path / "ours"), GivenSession.of(random_teacher(drafter.target, 1, 8))
    committed = rows.admit([5])
    for one in (drafter, again):
        one.open(1, 12)
        one.commit(committed)
    root = GrowingTree(rows.root, texts.VOCAB).frontier([0])
    assert torch.equal(drafter.expand(root).logits, again.expand(root).logits)


@pytest.mark.parametrize("form", FORMS)
def test_a_checkpoint_with_a_sliding_window_is_read_and_written(form: str, tmp_path: Path) -> None:
    config = {**FORMS[form][0]}
    inner = {"layer_types": ["sliding_attention"], "sliding_window": 24}
    if "transformer_layer_config" in config:
        config["transformer_layer_config"] = config["transformer_layer_config"] | inner
    publish(tmp_path / "theirs", config | inner)
    drafter = bound(tmp_path / "theirs")
    assert drafter.window == TextWindow(recent=24, sinks=0)
    assert bound(tmp_path / "theirs", window=12, sinks=1).window == TextWindow(12, 1), "a recipe's own comes first"
    drafter.save(tmp_path / "ours")
    assert bound(tmp_path / "ours").window == drafter.window
    publish(tmp_path / "plain", FORMS[form][0])
    assert bound(tmp_path / "plain").window is None


@pytest.mark.parametrize("options", texts.NETWORKS)
def test_a_new_drafter_comes_back_as_it_was(options: dict[str, Any], tmp_path: Path) -> None:
    drafter = texts.bound(torch.float32, **options)
    drafter.module.bfloat16().float()
    drafter.save(tmp_path)
    head = texts.Trimmed(keep=6) if options.get("own_head") is False else None
    again = Eagle3(weights=str(tmp_path), head=head)
    again.bind(texts.target(torch.float32))
    assert again.layout.taps == drafter.layout.taps and again.layout.switches == drafter.layout.switches
    assert again.support.tolist() == drafter.support.tolist()
    for name, tensor in drafter.module.state_dict().items():
        assert torch.equal(tensor, again.module.state_dict()[name]), name


SPOILT = [
    ({"layer_types": ["sliding_attention"]}, None, "not supported in a drafter of no sliding_window"),
    ({"hidden_size": 16}, None, "hidden_size: the checkpoint has 16, needed is 8"),
    ({"vocab_size": 12}, None, "vocab_size: the checkpoint has 12, needed is 11"),
    (
        {"num_hidden_layers": 2},
        texts.put("layers.1.mlp.up_proj.weight", torch.ones(INNER, H)),
        "layers.1.input_layernorm.weight: missing",
    ),
    ({"target_hidden_size": 16}, None, "target_hidden_size: the checkpoint has 16, needed is 8"),
    ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, None, "no EAGLE-3 drafter that is known here"),
    ({"model_type": "gemma2"}, None, "has layers of 'gemma2'"),
    ({IDS: [2, 4, 9]}, None, r"reads the outputs of layers \[1, 3, 8\], and the target has 0 to 7"),
    ({IDS: [1, 3, 7], "eagle_config": {IDS: [1, 3, 7]}}, None, "names two sets of layers"),
    ({IDS: [1, 3]}, None, r"fc.weight: has shape \[8, 24\], should have \[8, 16\]"),
    ({"draft_vocab_size": 7}, None, "has draft_vocab_size 7, and its LM head has 6 rows"),
    ({"fc_norm": True}, texts.without("fc_norm.0.weight"), "fc_norm.0.weight: missing"),
    ({}, texts.put("midlayer.self_attn.q_norm.weight", torch.ones(HEAD)), "q_norm.weight: unexpected"),
    ({}, texts.without("d2t"), "a draft vocabulary of 6 of 11 tokens and no d2t"),
    ({}, texts.without("norm.weight"), "norm.weight: missing"),
    ({}, texts.put("norm.weight", torch.full((H,), torch.nan)), "norm.weight: holds values that are not finite"),
    ({}, texts.put("d2t", torch.zeros(KEPT, dtype=torch.int64) + 9), "does not give 6 different tokens"),
    ({}, texts.put("t2d", torch.ones(texts.VOCAB, dtype=torch.bool)), "d2t and t2d of .* name different tokens"),
]


@pytest.mark.parametrize(("config", "change", "message"), SPOILT)
def test_what_does_not_fit_is_refused(
    config: dict[str, Any], change: Callable[[dict[str, Any]], object] | None, message: str, tmp_path: Path
) -> None:
    publish(tmp_path, OFFICIAL | config, change)
    with pytest.raises(WeightsError, match=message):
        bound(tmp_path)


def test_a_config_with_the_targets_number_of_layers_is_that_of_the_one_in_the_file(tmp_path: Path) -> None:
    """As the authors' drafter for Vicuna-13B has it, whose config is the target's: 40 layers."""
    publish(tmp_path / "one", OFFICIAL)
    publish(tmp_path / "forty", OFFICIAL | {"num_hidden_layers": 40})
    one, forty = bound(tmp_path / "one"), bound(tmp_path / "forty")
    assert forty.layout.config["num_hidden_layers"] == 1
    for name, tensor in one.module.state_dict().items():
        assert torch.equal(tensor, forty.module.state_dict()[name]), name


def embedded(table: torch.Tensor) -> Callable[[dict[str, Any]], object]:
    return texts.put("embed_tokens.weight", table)


def test_a_drafter_with_an_embedding_of_its_own_reads_that_and_keeps_it(tmp_path: Path) -> None:
    """Its drafts are those of a drafter without one for a target that has this embedding."""
    table = torch.randn(texts.VOCAB, H, generator=torch.Generator().manual_seed(8)).half().float()
    publish(tmp_path / "own", OFFICIAL, embedded(table))
    publish(tmp_path / "none", OFFICIAL)
    own, other = bound(tmp_path / "own"), Eagle3(weights=str(tmp_path / "none"))
    other.bind(tiny_target(vocab=texts.VOCAB, layers=texts.LAYERS, dtype=torch.float32))
    teacher = random_teacher(own.target, batch=2, length=7)
    found, plain = rollout(own, teacher), rollout(other, teacher)
    assert not torch.allclose(found, plain)
    other.target.model.get_input_embeddings().weight.data.copy_(table)
    torch.testing.assert_close(rollout(other, teacher), found)
    for form in set(own.forms) - {"gguf"}:  # a GGUF file needs the target's tokenizer
        assert torch.equal(own.export(form).tensors["embed_tokens.weight"].float(), table), form
    own.save(tmp_path / "again")
    assert torch.equal(load_file(tmp_path / "again" / "model.safetensors")["embed_tokens.weight"], table.half())
    assert torch.equal(rollout(bound(tmp_path / "again"), teacher).half(), found.half())


@pytest.mark.parametrize("more", [1, 3])
def test_a_target_with_rows_added_to_its_vocabulary_is_drafted_for(more: int, tmp_path: Path) -> None:
    vocab = 300
    publish(tmp_path, OFFICIAL | {"vocab_size": vocab}, texts.put("t2d", in_draft(vocab)))
    drafter = Eagle3(weights=str(tmp_path))
    drafter.bind(tiny_target(vocab=vocab + more, layers=texts.LAYERS))
    assert drafter.support.tolist() == [0, 1, 4, 5, 8, 10]


def test_its_whole_lm_head_is_a_draft_vocabulary_then(tmp_path: Path) -> None:
    vocab = 300
    config = {name: value for name, value in OFFICIAL.items() if name != "draft_vocab_size"} | {"vocab_size": vocab}

    def whole(tensors: dict[str, Any]) -> None:
        del tensors["d2t"], tensors["t2d"]
        tensors["lm_head.weight"] = torch.randn(vocab, H).half()
        tensors["embed_tokens.weight"] = torch.randn(vocab, H).half()

    publish(tmp_path, config, whole)
    drafter = Eagle3(weights=str(tmp_path))
    drafter.bind(tiny_target(vocab=vocab + 3, layers=texts.LAYERS))
    assert drafter.support.tolist() == list(range(vocab))
    tokens = torch.tensor([[vocab + 2, vocab - 1]])  # one that it has no row of
    read = drafter.network.embedded(drafter.target.embed)(tokens)
    assert torch.equal(read[0, 0], read[0, 1])
    with pytest.raises(WeightsError, match="drafts 300 tokens, and the target has 299 of them"):
        Eagle3(weights=str(tmp_path)).bind(tiny_target(vocab=vocab - 1, layers=texts.LAYERS))


def in_draft(vocab: int) -> torch.Tensor:
    return torch.zeros(vocab, dtype=torch.bool).index_fill(0, torch.tensor([0, 1, 4, 5, 8, 10]), True)


def rollout(drafter: Eagle3, teacher: Any) -> torch.Tensor:
    return TrainingTimeTest(steps=3)(drafter, teacher, 0.0).logits.detach()


def test_speculators_without_its_residual_switch_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, {name: value for name, value in SPECULATORS.items() if name != "norm_before_residual"})
    with pytest.raises(WeightsError, match="which speculators takes for false and vLLM for true"):
        bound(tmp_path)


def test_another_algorithm_of_speculators_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, {**SPECULATORS, "speculators_model_type": "dflash"})
    with pytest.raises(WeightsError, match="speculators_model_type 'dflash'"):
        bound(tmp_path)


def test_a_shallow_target_needs_explicit_layers(tmp_path: Path) -> None:
    publish(tmp_path, OFFICIAL)
    with pytest.raises(WeightsError, match="does not record which layers it reads"):
        bound(tmp_path, layers=4)


def test_options_that_contradict_the_checkpoint_are_refused(tmp_path: Path) -> None:
    publish(tmp_path, OFFICIAL)
    for options, message in [({"fc_norm": True}, "has no fc_norm"), ({"taps": [0, 1, 2]}, "reads the layers")]:
        with pytest.raises(WeightsError, match=message):
            bound(tmp_path, **options)
    with pytest.raises(WeightsError, match="leave own_head out"):
        bound(tmp_path, own_head=False)


def test_a_pickle_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    publish(tmp_path / "new", OFFICIAL)
    old = tmp_path / "old"
    old.mkdir()
    torch.save(load_file(tmp_path / "new" / "model.safetensors"), old / "pytorch_model.bin")
    (old / "config.json").write_text(json.dumps(OFFICIAL))
    with pytest.raises(WeightsError, match=r"python -m specframe_eagle\.convert"):
        bound(old)
    convert(old, tmp_path / "made")
    assert bound(tmp_path / "made").layout.taps == (1, 3, 4)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, OFFICIAL)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(WeightsError, match="cannot read"):
        bound(tmp_path)


@pytest.mark.parametrize("index", [True, False])
def test_a_checkpoint_in_parts_is_the_whole_one(index: bool, tmp_path: Path) -> None:
    publish(tmp_path, OFFICIAL)
    wanted = bound(tmp_path)
    first, _ = split(tmp_path, index=index)
    found = bound(tmp_path)
    assert found.layout.taps == wanted.layout.taps and torch.equal(found.support, wanted.support)
    for name, weight in wanted.module.state_dict().items():
        assert torch.equal(found.module.state_dict()[name], weight), name
    first.unlink()
    with pytest.raises(WeightsError, match=r"part 1 of 2: .*model-00001-of-00002\.safetensors is absent"):
        bound(tmp_path)
