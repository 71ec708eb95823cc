"""Checkpoints in 8 bits: half the size, read as any other, and rounded once for all."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from specframe import WeightsError
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.neural import TapFusion, checkpoint, native_fusion, round_layers
from specframe_eagle.drafter import Eagle
from specframe_eagle.eagle3 import Eagle3


def net() -> nn.Module:
    """Two matrices that blocks divide, one that they do not, and norms."""
    return nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96), nn.Linear(96, 64), nn.Linear(40, 8))


@pytest.fixture
def kept(tmp_path):
    """A module, and the folders of its checkpoint as it is and in 8 bits."""
    module = net()
    checkpoint.save(module, {"block": 2}, tmp_path / "whole", torch.bfloat16)
    (tmp_path / "whole" / "train.json").write_text("{}", encoding="utf-8")
    checkpoint.shrink(tmp_path / "whole", tmp_path / "small")
    return module, tmp_path


def test_it_is_half_the_size_and_loads(kept):
    module, folder = kept
    whole, small = ((folder / name / "model.safetensors").stat().st_size for name in ("whole", "small"))
    assert small < 0.65 * whole and (folder / "small" / "train.json").exists()
    found = net()
    assert checkpoint.load(found, folder / "small") == {"block": 2}
    for name, weight in module.state_dict().items():
        step = weight.abs().max() / 127 if weight.dim() == 2 else 0
        assert (found.state_dict()[name] - weight).abs().max() <= 0.51 * step + weight.abs().max() / 256, name
    assert checkpoint.shapes(folder / "small") == checkpoint.shapes(folder / "whole")


def test_what_was_rounded_stays_as_it_is(kept):
    _, folder = kept
    checkpoint.shrink(folder / "small", folder / "again")
    one, other = (load_file(folder / name / "model.safetensors") for name in ("small", "again"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_in_4_bits_it_is_a_third_of_the_size_and_loads(kept):
    module, folder = kept
    checkpoint.shrink(folder / "whole", folder / "least", 4)
    whole, least = ((folder / name / "model.safetensors").stat().st_size for name in ("whole", "least"))
    assert least < 0.45 * whole
    found = net()
    assert checkpoint.load(found, folder / "least") == {"block": 2}
    for name, weight in module.state_dict().items():
        step = (weight.max() - weight.min()) / 15 if weight.dim() == 2 else 0
        assert (found.state_dict()[name] - weight).abs().max() <= 0.51 * step + weight.abs().max() / 256, name
    assert checkpoint.shapes(folder / "least") == checkpoint.shapes(folder / "whole")


def test_half_a_matrix_is_unexpected(kept):
    _, folder = kept
    stored = load_file(folder / "small" / "model.safetensors")
    del stored["0.weight.scale"]
    save_file(stored, folder / "small" / "model.safetensors")
    with pytest.raises(WeightsError, match=r"0\.weight\.codes: unexpected\n  0\.weight: missing"):
        checkpoint.load(net(), folder / "small")


def test_a_folder_that_cannot_be_written_is_one_line(kept):
    _, folder = kept
    (folder / "file").touch()
    with pytest.raises(WeightsError, match=r"cannot write .* in 8 bits to"):
        checkpoint.shrink(folder / "whole", folder / "file")


@pytest.mark.parametrize("method", [Eagle, Eagle3])
def test_decoding_in_8_bits_computes_with_the_stored_codes(tmp_path, method):
    """Rounded again, weights that were stored in 8 bits are what they were."""
    target = HFTarget.from_model(random_model(vocab=50, size=64, layers=8), None)
    first = method(quantize="int8")
    first.bind(target)
    first.save(tmp_path / "whole")
    checkpoint.shrink(tmp_path / "whole", tmp_path / "small")
    pairs = torch.randn(1, 5, 128, dtype=target.dtype, generator=torch.Generator().manual_seed(0))
    found = []
    for name in ("whole", "small"):
        drafter = method(quantize="int8", weights=str(tmp_path / name))
        drafter.bind(target)
        with torch.no_grad():
            found.append(drafter.decoding.inputs(pairs, ())[0])
    assert torch.allclose(*found, atol=1e-5)


def test_a_language_model_in_8_bits_loads_as_any(tmp_path):
    model = random_model("llama", vocab=40, size=64).float()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path / "whole")
    checkpoint.shrink(tmp_path / "whole", tmp_path / "small")

    found = HFTarget(model=str(tmp_path / "small")).model.state_dict()

    assert found.keys() == model.state_dict().keys()
    assert found["lm_head.weight"].data_ptr() == found["model.embed_tokens.weight"].data_ptr()
    for name, weight in model.state_dict().items():
        step = weight.abs().max() / 127 if weight.dim() == 2 else 0
        assert (found[name] - weight).abs().max() <= step, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_fusion_of_taps_in_blocks_is_one_norm_and_one_product(dtype):
    fusion = TapFusion(3, 64).to(dtype)
    for norm in fusion.norms:
        nn.init.normal_(norm.weight, 1.0, 0.3)
    features = torch.randn(2, 5, 192).to(dtype)
    rounded = round_layers(fusion, "int8")
    found = native_fusion(rounded)
    assert len(list(found.children())) == 2 and native_fusion(fusion) is fusion
    with torch.no_grad():
        torch.testing.assert_close(found(features), rounded(features), rtol=0.02, atol=0.02)
