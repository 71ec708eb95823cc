"""Checkpoints: the published layout comes in and goes out bit by bit, and what does not fit is refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import eagle_reference as reference
import eagle_texts as texts
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specframe import CompositionError, WeightsError
from specframe.testing import GrowingTree, check_refusals, random_teacher
from specframe_eagle import convert
from specframe_eagle.drafter import Eagle
from tests.parts import split

H, INNER, HEAD = 8, 12, 4
ATTENTION = {"q": 2 * HEAD, "k": HEAD, "v": HEAD}


def publish(folder: Path, *, bias: bool, qkv_bias: bool = False, embedding: bool = False) -> dict[str, Tensor]:
    """Writes a checkpoint as EAGLE's authors lay theirs out, in half precision; the config is a Llama's."""
    chance = torch.Generator().manual_seed(3)
    layer = "layers.0."
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (H, 2 * H),
        f"{layer}self_attn.o_proj.weight": (H, H),
        f"{layer}mlp.gate_proj.weight": (INNER, H),
        f"{layer}mlp.up_proj.weight": (INNER, H),
        f"{layer}mlp.down_proj.weight": (H, INNER),
        f"{layer}post_attention_layernorm.weight": (H,),
        **{f"{layer}self_attn.{which}_proj.weight": (size, H) for which, size in ATTENTION.items()},
    }
    if bias:
        shapes["fc.bias"] = (H,)
    if qkv_bias:
        shapes |= {f"{layer}self_attn.{which}_proj.bias": (size,) for which, size in ATTENTION.items()}
    tensors = {name: torch.randn(shape, generator=chance).half() for name, shape in shapes.items()}
    if embedding:
        tensors["embed_tokens.weight"] = texts.target(dtype=torch.float32).embed(torch.arange(texts.VOCAB)).half()
    config = {
        **texts.PUBLISHED,
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "torch_dtype": "float16",
        "transformers_version": "4.31.0",
    }
    config |= {} if bias else {"bias": False}  # the first releases don't record that they have one
    config |= {"qkv_bias": True} if qkv_bias else {}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def bound(weights: Path, kind: str = "llama", dtype: torch.dtype = torch.float32, vocab: int = texts.VOCAB) -> Eagle:
    drafter = Eagle(weights=str(weights))
    drafter.bind(texts.target(kind, dtype, vocab=vocab))
    return drafter


RELEASES = [
    {"bias": True, "embedding": True},  # Vicuna, Llama 2
    {"bias": False},  # Llama 3
    {"bias": True, "qkv_bias": True},  # Qwen2
]


@pytest.mark.parametrize("release", RELEASES)
def test_a_published_checkpoint_comes_in_and_goes_out_bit_by_bit(release: dict[str, bool], tmp_path: Path) -> None:
    published = publish(tmp_path / "theirs", **release)
    kind = "qwen2" if "qkv_bias" in release else "llama"
    drafter = bound(tmp_path / "theirs", kind)
    ours = drafter.module.state_dict()
    for name, tensor in published.items():
        if name != "embed_tokens.weight":
            assert torch.equal(ours[name.replace("layers.0", "layer.layer")], tensor.float()), name
    assert len(ours) == len(published) - ("embedding" in release)

    teacher = random_teacher(texts.target(kind, torch.float32), 1, 8)
    features, tokens = teacher.features["last"][:, :-1], teacher.tokens[:, 1:]
    with torch.no_grad():
        predicted = drafter.unroll(features, tokens).hidden[0, -1, 0]
        literal = reference.prediction(drafter, features[0], tokens[0])
    torch.testing.assert_close(predicted, literal, rtol=1e-4, atol=1e-4)

    drafter.save(tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == published.keys()
    for name, tensor in published.items():
        assert again[name].dtype == torch.float16 and torch.equal(again[name], tensor), name
    configs = [json.loads((tmp_path / folder / "config.json").read_text()) for folder in ("theirs", "again")]
    assert configs[1].pop("trained_for").keys() == {"name", "fingerprint"}
    assert configs[0] == configs[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", texts.KINDS)
def test_what_is_saved_comes_back_bit_by_bit(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    drafter = texts.bound(kind, dtype, bias=False)
    with torch.no_grad():
        for weight in drafter.module.parameters():
            weight.copy_(weight.bfloat16())
    drafter.save(tmp_path)
    again = bound(tmp_path, kind, dtype).module.state_dict()
    for name, weight in drafter.module.state_dict().items():
        assert again[name].dtype == dtype and torch.equal(weight, again[name]), name
    names = load_file(tmp_path / "model.safetensors").keys()
    assert {"fc.weight", "layers.0.self_attn.q_proj.weight", "layers.0.post_attention_layernorm.weight"} <= names
    assert not [name for name in names if "input_layernorm" in name or not name.startswith(("fc.", "layers.0."))]


def test_a_new_drafters_config_is_a_models_of_one_layer(tmp_path: Path) -> None:
    texts.bound(bias=False).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    written = [config[name] for name in ("model_type", "num_hidden_layers", "bias", "hidden_size", "vocab_size")]
    assert written == ["llama", 1, False, H, texts.VOCAB]
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]


def test_a_scaled_rotary_embedding_comes_back_under_either_name(tmp_path: Path) -> None:
    scaled = {"rope_type": "linear", "factor": 2.0}
    target = copy.copy(texts.target(dtype=torch.float32))
    target.config = copy.deepcopy(target.config)
    target.config.rope_parameters = {**scaled, "rope_theta": 500.0}
    drafter = Eagle()
    drafter.bind(target)
    drafter.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["rope_theta"], config["rope_scaling"]) == (500.0, scaled)
    for old in ([], ["rope_parameters"], ["rope_theta", "rope_scaling"]):
        kept = {name: value for name, value in config.items() if name not in old}
        (tmp_path / "config.json").write_text(json.dumps(kept))
        again = bound(tmp_path)
        x, positions = torch.randn(1, 5, H), torch.arange(5)[None]
        again.module.load_state_dict(drafter.module.state_dict())  # what was stored is rounded
        assert torch.equal(again.module.layer(x, positions, None), drafter.module.layer(x, positions, None))


def test_tensors_that_do_not_fit_are_all_listed(tmp_path: Path) -> None:
    tensors = publish(tmp_path, bias=True)
    tensors["layers.0.input_layernorm.weight"] = torch.ones(H)
    tensors["fc.bias"][3] = torch.nan
    tensors["layers.0.mlp.up_proj.weight"] = torch.zeros(2, 2)
    del tensors["layers.0.mlp.gate_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as failure:
        bound(tmp_path)
    parts = ("input_layernorm.weight: unexpected", "not finite", "has shape [2, 2]", "gate_proj.weight: missing")
    assert all(part in str(failure.value) for part in parts)


def test_a_bias_that_the_config_does_not_announce(tmp_path: Path) -> None:
    publish(tmp_path, bias=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "bias": False}))
    with pytest.raises(WeightsError, match=r"fc\.bias: unexpected"):
        bound(tmp_path)


def test_another_targets_embedding_is_refused(tmp_path: Path) -> None:
    tensors = publish(tmp_path, bias=True, embedding=True)
    tensors["embed_tokens.weight"] = tensors["embed_tokens.weight"].flip(0).contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="another target"):
        bound(tmp_path)


def test_a_config_that_contradicts(tmp_path: Path) -> None:
    publish(tmp_path, bias=True)
    with pytest.raises(WeightsError, match=f"vocab_size: the checkpoint has {texts.VOCAB}, needed is 13"):
        bound(tmp_path, vocab=13)
    (tmp_path / "config.json").write_text(json.dumps({"format": "falcon", "hidden_size": H}))
    with pytest.raises(WeightsError, match="num_hidden_layers: the checkpoint has None"):
        bound(tmp_path)
    config = {"model_type": "unknown", "num_hidden_layers": 1, "hidden_size": H, "vocab_size": texts.VOCAB}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="unknown"):
        bound(tmp_path)


def test_no_such_folder_and_no_weights_in_it(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="nowhere"):
        bound(tmp_path / "nowhere")
    publish(tmp_path, bias=True)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"holds no model\.safetensors"):
        bound(tmp_path)


def test_a_pickled_checkpoint_is_converted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    tensors = publish(old, bias=True, embedding=True)
    (old / "model.safetensors").unlink()
    torch.save(tensors, old / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"python -m specframe_eagle\.convert"):
        bound(old)
    assert convert.main([str(old), str(new)]) == 0
    assert str(new) in capsys.readouterr().out
    converted = load_file(new / "model.safetensors")
    assert converted.keys() == tensors.keys()
    assert all(torch.equal(converted[name], tensor) for name, tensor in tensors.items())
    bound(new)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    publish(tmp_path, bias=True)
    torch.save({"fc.weight": Path("not a tensor")}, tmp_path / "pytorch_model.bin")
    assert convert.main([str(tmp_path), str(tmp_path / "new")]) == 2
    assert "cannot read" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_head_of_its_own() -> None:
    class Halving:
        def bind(self, target: object) -> None:
            self.target = target

        def __call__(self, features: Tensor) -> Tensor:
            return self.target.head(features) / 2

    plain, halved = texts.bound(), texts.bound(head=Halving())
    features = torch.randn(3, H, dtype=torch.float64)
    torch.testing.assert_close(plain.logits(features), 2 * halved.logits(features))


def test_first_weights_are_always_the_same_and_disturb_no_generator() -> None:
    def fresh() -> dict[str, Tensor]:
        drafter = Eagle()
        drafter.bind(texts.target())
        return drafter.module.state_dict()

    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = fresh()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(4)
    second = fresh()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_it_names_what_it_needs() -> None:
    check_refusals(Eagle, texts.bound)
    with pytest.raises(CompositionError, match="committed"):
        texts.bound().expand(GrowingTree(torch.zeros(1, dtype=torch.int64), texts.VOCAB).frontier([0]))


def test_a_checkpoint_in_parts_is_the_whole_one(tmp_path: Path) -> None:
    publish(tmp_path, bias=True)
    wanted = bound(tmp_path).module.state_dict()
    first, _ = split(tmp_path)
    for name, weight in bound(tmp_path).module.state_dict().items():
        assert torch.equal(weight, wanted[name]), name
    first.unlink()
    with pytest.raises(WeightsError, match=r"part 1 of 2: .* is absent"):
        bound(tmp_path)
