"""Checkpoints: whole or not at all, and strict."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from specframe.kernel.errors import PluginError, WeightsError
from specframe.neural import checkpoint


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def test_what_is_saved_is_loaded(tmp_path):
    one, two = net(), net()
    checkpoint.save(one, {"block": 2}, tmp_path / "a" / "b")
    assert sorted(p.name for p in (tmp_path / "a" / "b").iterdir()) == ["config.json", "model.safetensors"]
    assert checkpoint.load(two, tmp_path / "a" / "b") == {"block": 2}
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))


def test_weights_have_the_permissions_of_new_files(tmp_path):
    (tmp_path / "new").touch()
    checkpoint.save(nn.Linear(2, 2), {}, tmp_path)
    modes = {path.name: path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 3 and set(modes.values()) == {modes["new"]}, "safetensors alone would write mode 600"


def test_bfloat16_storage_loads_into_the_module_s_own_dtype(tmp_path):
    one, two = net(), net().double()
    checkpoint.save(one, {}, tmp_path, dtype=torch.bfloat16)
    stored = load_file(tmp_path / "model.safetensors")
    assert stored["0.weight"].dtype == torch.bfloat16 and stored["1.num_batches_tracked"].dtype == torch.int64
    checkpoint.load(two, tmp_path)
    assert two[0].weight.dtype == torch.float64
    assert torch.equal(two[0].weight, one[0].weight.bfloat16().double())


def test_tied_weights_are_saved(tmp_path):
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    checkpoint.save(tied, {}, tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == {"0.weight", "1.weight"}


def test_every_misfit_is_listed_and_nothing_is_loaded(tmp_path):
    module = net()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    state = {k: torch.zeros_like(v) for k, v in before.items()}
    del state["0.bias"]
    state["extra"] = torch.zeros(1)
    state["0.weight"] = torch.zeros(4, 2)
    state["1.weight"][1] = torch.nan
    state["1.bias"][0] = torch.inf
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError) as error:
        checkpoint.load(module, tmp_path)
    text = str(error.value)
    assert "0.bias: missing" in text
    assert "extra: unexpected" in text
    assert "0.weight: has shape [4, 2], should have [4, 3]" in text
    assert "1.weight: holds values that are not finite" in text
    assert "1.bias: holds values that are not finite" in text
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_weights_that_float16_makes_infinite_are_refused(tmp_path):
    module = net()
    module[0].weight.data[1, 1] = 1e5
    checkpoint.save(module, {}, tmp_path)
    checkpoint.load(net(), tmp_path)
    with pytest.raises(
        WeightsError, match=r"0.weight: holds values that are not finite \(NaN or infinity\) in torch.float16"
    ):
        checkpoint.load(net().half(), tmp_path)


def test_unreadable_files_are_one_clear_error(tmp_path):
    checkpoint.save(net(), {}, tmp_path)
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:-8])
    with pytest.raises(WeightsError, match=r"cannot read .*model\.safetensors"):
        checkpoint.load(net(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"cannot read .*model\.safetensors"):
        checkpoint.load(net(), tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightsError, match=r"cannot read .*config\.json"):
        checkpoint.read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(WeightsError, match="JSON object"):
        checkpoint.read_config(tmp_path)


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    good = net()
    checkpoint.save(good, {"n": 1}, tmp_path)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(WeightsError, match=r"cannot write the checkpoint to .*: No space left on device"):
        checkpoint.save(net(), {"n": 2}, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((tmp_path / "config.json").read_text()) == {"n": 1}
    again = net()
    checkpoint.load(again, tmp_path)
    assert torch.equal(again[0].weight, good[0].weight)


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match="cannot write the checkpoint"):
        checkpoint.save(net(), {}, tmp_path / "file" / "folder")


def test_locate(tmp_path, monkeypatch):
    assert checkpoint.locate(tmp_path) == tmp_path
    assert checkpoint.locate(str(tmp_path)) == tmp_path
    for nowhere in ("./nowhere", str(tmp_path / "nowhere"), "nowhere"):
        with pytest.raises(WeightsError, match="no checkpoint at"):
            checkpoint.locate(nowhere)
    with pytest.raises(PluginError):
        checkpoint.locate("zoo://surely-not-there")
    (tmp_path / "small").mkdir()
    monkeypatch.setattr("specframe.neural.weights.locate.model_folder", lambda name: tmp_path / name)
    assert checkpoint.locate("zoo://small") == tmp_path / "small"
    assert checkpoint.locate((tmp_path.__class__)("zoo://small")) == tmp_path / "small"


def test_a_hub_name_that_cannot_be_fetched_is_one_clear_error(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def offline(*args, **kwargs):
        raise LocalEntryNotFoundError("outgoing traffic has been disabled")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(WeightsError, match="'some/one'"):
        checkpoint.locate("some/one")
