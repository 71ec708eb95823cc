"""Loading from a folder: what comes back, and the error for a folder that will not do."""

from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import CLIPConfig, PreTrainedTokenizerFast

from specframe.components.targets.hf import HFTarget
from specframe.components.targets.loading import locate
from specframe.kernel.errors import CompositionError, InputError, WeightsError
from specframe.neural.weights import locate as places
from specframe.testing import admitted
from tests.components.targets.models import PROMPTS, batch


@pytest.fixture
def folder(tmp_path: Path, build) -> Path:
    build("llama").float().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("stored", "decoded"),
    [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float32"), ("float64", "float64")],
)
def test_a_checkpoints_own_dtype(tmp_path, build, caplog, stored, decoded):
    model = build("llama").to(getattr(torch, stored))
    model.save_pretrained(tmp_path)
    target = HFTarget(model=str(tmp_path), dtype="stored", device="cpu")
    assert target.dtype == getattr(torch, decoded) and not caplog.records
    assert torch.equal(target.model.lm_head.weight, model.lm_head.weight.to(target.dtype))


@pytest.mark.parametrize(
    ("stored", "decoded", "keeps"),
    [
        ("float32", "bfloat16", "float32"),
        ("float32", "float16", "float32"),
        ("float16", "bfloat16", "float32"),
        ("bfloat16", "float16", "bfloat16"),
        ("float64", "bfloat16", "float64"),
        ("float16", "auto", None),
        ("bfloat16", "float32", None),
    ],
)
def test_weights_that_are_rounded_are_named(tmp_path, build, caplog, stored, decoded, keeps):
    build("llama").to(getattr(torch, stored)).save_pretrained(tmp_path)
    HFTarget(model=str(tmp_path), dtype=decoded, device="cpu")
    found = [record.getMessage() for record in caplog.records if "is stored in" in record.getMessage()]
    if keeps is None:
        assert found == []
    else:
        (line,) = found
        assert f"is stored in {stored} and decoded in {decoded}" in line and line.endswith(
            f"`dtype: {keeps}` keeps the checkpoint's"
        )


def change_weights(folder: Path, name: str, value: torch.Tensor | None) -> None:
    weights = load_file(folder / "model.safetensors")
    if value is None:
        del weights[name]
    else:
        weights[name] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_saved_model_comes_back(folder, build):
    torch.manual_seed(0)
    model = build("llama").float()
    target = HFTarget(model=str(folder), device="cpu")
    assert target.dtype == torch.float32 and target.device.type == "cpu"
    assert not target.model.training
    assert not any(parameter.requires_grad for parameter in target.model.parameters())
    _, scores = admitted(target, batch(PROMPTS), 4)
    _, expected = admitted(HFTarget.from_model(model), batch(PROMPTS), 4)
    torch.testing.assert_close(scores.logits, expected.logits)


@pytest.mark.parametrize("family", ["gpt2", "gemma", "opt"])
def test_tied_weights_are_not_missing(family, tmp_path, build):
    model = build(family, tie_word_embeddings=True).float()
    model.save_pretrained(tmp_path)
    target = HFTarget(model=str(tmp_path), device="cpu")
    tokens = torch.tensor([[1, 2, 3]])
    lesson = target.teach(tokens, torch.ones_like(tokens, dtype=torch.bool))
    torch.testing.assert_close(lesson.logits, model(tokens).logits)


def test_embedded_names_are_resolved_by_the_plugins(folder, monkeypatch):
    asked = []

    def model_folder(name: str) -> Path:
        asked.append(name)
        return folder

    monkeypatch.setattr(places, "model_folder", model_folder)
    assert locate("zoo://tiny") == folder
    assert asked == ["tiny"]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_dtype_can_be_chosen(folder, dtype):
    target = HFTarget(model=str(folder), dtype=dtype, device="cpu", attention="eager")
    assert target.dtype == getattr(torch, dtype)
    assert target.model.config._attn_implementation == "eager"
    target.check()


def test_the_tokenizer_is_none_without_files_and_loads_with_them(folder):
    from tokenizers import Tokenizer, models

    assert HFTarget(model=str(folder), device="cpu").tokenizer is None
    vocabulary = {"<unk>": 0, "a": 1, "b": 2}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    ).save_pretrained(folder)
    tokenizer = HFTarget(model=str(folder), device="cpu").tokenizer
    assert tokenizer is not None and tokenizer.convert_tokens_to_ids("b") == 2


def test_a_tokenizer_in_memory_is_passed_on(build):
    sentinel = object()
    assert HFTarget.from_model(build("llama"), tokenizer=sentinel).tokenizer is sentinel
    assert HFTarget.from_model(build("llama")).tokenizer is None


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/no such folder", ""])
def test_a_folder_that_is_not_there(name):
    with pytest.raises(InputError, match="there is no folder"):
        HFTarget(model=name)


def test_a_file_is_no_folder(folder):
    with pytest.raises(InputError, match="is a file"):
        HFTarget(model=str(folder / "config.json"))


def test_a_hub_name_that_cannot_be_reached(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert locate("no-owner/no-such-model") == "no-owner/no-such-model"
    with pytest.raises(InputError, match="no-owner/no-such-model cannot be found or reached"):
        HFTarget(model="no-owner/no-such-model")


def test_a_folder_without_config(tmp_path):
    with pytest.raises(InputError, match="no config"):
        HFTarget(model=str(tmp_path))


def test_a_config_that_is_no_json(folder):
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="config that cannot be read"):
        HFTarget(model=str(folder))


def test_an_architecture_that_transformers_does_not_know(folder):
    change_config(folder, model_type="no_such_type", auto_map={"AutoConfig": "evil.Config"})
    with pytest.raises(InputError, match="cannot be a target: it needs code of its own, and no code"):
        HFTarget(model=str(folder))
    change_config(folder, model_type="no_such_type", auto_map={})
    with pytest.raises(InputError, match="config that cannot be read"):
        HFTarget(model=str(folder))


def test_a_model_that_is_no_language_model(tmp_path):
    CLIPConfig().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="clip model, which is no causal language model"):
        HFTarget(model=str(tmp_path))


def test_a_recurrent_model_is_refused_before_its_weights_load(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "rwkv"}))
    with pytest.raises(CompositionError, match="a recurrent state that it does not keep in a cache"):
        HFTarget(model=str(tmp_path))


def test_weights_in_another_format_are_refused(folder):
    torch.save({}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"no \.safetensors"):
        HFTarget(model=str(folder))


def test_broken_weight_files_are_named(folder):
    (folder / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(WeightsError, match="cannot be loaded"):
        HFTarget(model=str(folder))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused(folder, bad):
    weight = torch.zeros(32)
    weight[7] = bad
    change_weights(folder, "model.layers.1.input_layernorm.weight", weight)
    with pytest.raises(WeightsError, match=r"NaN or infinite: model\.layers\.1\.input_layernorm"):
        HFTarget(model=str(folder), device="cpu")


def test_missing_weights_are_refused(folder):
    change_weights(folder, "model.layers.2.mlp.up_proj.weight", None)
    with pytest.raises(WeightsError, match=r"incomplete: 1 missing, such as model\.layers\.2\.mlp\.up_proj"):
        HFTarget(model=str(folder), device="cpu")


def test_weights_of_another_shape_are_refused(folder):
    change_config(folder, intermediate_size=48)
    with pytest.raises(WeightsError, match=r"shapes of its config\.json"):
        HFTarget(model=str(folder), device="cpu")


@pytest.mark.parametrize("device", ["toaster", "cuda:99"])
def test_a_device_that_is_not_there(folder, device):
    with pytest.raises(InputError, match="device"):
        HFTarget(model=str(folder), device=device)
