"""Weights in parts: read with an index or without; an index leads to safetensors files in its folder alone."""

import json

import pytest
import torch

from specframe.components.targets.hf import HFTarget
from specframe.interchange.pickles import convert, pickled
from specframe.kernel.errors import WeightsError
from specframe.neural import checkpoint
from specframe.neural.weights import weight_cache
from specframe.neural.weights.locate import INDEX, check_shards
from tests import parts
from tests.small_model import make_model


@pytest.fixture
def folder(tmp_path):
    """A model whose weights are two files and an index."""
    where = tmp_path / "model"
    make_model().save_pretrained(where, max_shard_size="20KB")
    assert len(list(where.glob("*.safetensors"))) > 1
    return where


def edit(folder, change):
    index = json.loads((folder / INDEX).read_text())
    change(index)
    (folder / INDEX).write_text(json.dumps(index))


def test_a_model_in_several_files_loads(folder):
    check_shards(folder)
    assert HFTarget(model=str(folder), device="cpu").vocab_size == make_model().config.vocab_size


def test_pickled_weights_do_not_come_in_by_an_index(folder):
    weights = make_model().state_dict()
    torch.save(weights, folder / "pytorch_model.bin")
    edit(folder, lambda index: index["weight_map"].update(dict.fromkeys(weights, "pytorch_model.bin")))
    with pytest.raises(WeightsError, match=r"names 'pytorch_model\.bin': weights are safetensors files"):
        HFTarget(model=str(folder), device="cpu")


@pytest.mark.parametrize("moved", ["../{}", "deep/{}", "{}\0", "/tmp/{}", ".{}", "..\\{}"])
def test_weights_of_another_folder_do_not_come_in_by_an_index(folder, moved):
    def change(index):
        name, file = next(iter(index["weight_map"].items()))
        index["weight_map"][name] = moved.format(file)
        if "\0" not in moved and moved[0] != "/":
            (folder / "deep").mkdir()
            (folder / moved.format(file)).write_bytes((folder / file).read_bytes())

    edit(folder, change)
    with pytest.raises(WeightsError, match="weights are safetensors files in its folder only"):
        HFTarget(model=str(folder), device="cpu")


@pytest.mark.parametrize("named", ["../model.safetensors", "deep/model.safetensors.index.json", "adapter_model.bin"])
def test_a_config_names_weights_in_its_folder(folder, named):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"transformers_weights": named}))
    with pytest.raises(WeightsError, match=r"names '.*' for its weights: no safetensors file there"):
        HFTarget(model=str(folder), device="cpu")


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": []}}', "[" * 20_000])
def test_a_broken_index_is_named(folder, text):
    (folder / INDEX).write_text(text)
    with pytest.raises(WeightsError, match="is no index of weights"):
        check_shards(folder)


@pytest.fixture
def model(tmp_path):
    """A model's folder, with all weights in one file."""
    make_model().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("index", [True, False])
def test_a_target_in_parts_is_the_whole_one(index, model):
    wanted = HFTarget(model=str(model), device="cpu").model.state_dict()
    paths = parts.split(model, count=3, index=index)
    for place in (model, *paths):
        found = HFTarget(model=str(place), device="cpu").model.state_dict()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("absent", [1, 2, 3])
def test_a_target_without_a_part_is_one_line(absent, index, model):
    parts.split(model, count=3, index=index)[absent - 1].unlink()
    with pytest.raises(WeightsError, match=rf"part {absent} of 3: .*model-0000{absent}-of-00003.* is absent") as caught:
        HFTarget(model=str(model), device="cpu")
    assert "\n" not in str(caught.value)


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))


@pytest.mark.parametrize("index", [True, False])
def test_a_drafters_checkpoint_in_parts_is_the_whole_one(index, tmp_path):
    checkpoint.save(wanted := network(), {"format": "x"}, tmp_path)
    shapes = checkpoint.shapes(tmp_path)
    paths = parts.split(tmp_path, index=index)
    assert checkpoint.has_weights(tmp_path) and checkpoint.shapes(tmp_path) == shapes
    for place in (tmp_path, paths[0]):
        module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
        assert checkpoint.load(module, place) == {"format": "x"}
        assert all(torch.equal(weight, wanted.state_dict()[name]) for name, weight in module.state_dict().items())
    checkpoint.shrink(tmp_path, tmp_path / "small")
    assert checkpoint.shapes(tmp_path / "small") == shapes


@pytest.mark.parametrize("index", [True, False])
def test_a_drafters_checkpoint_without_a_part_is_one_line(index, tmp_path):
    checkpoint.save(network(), {}, tmp_path)
    parts.split(tmp_path, index=index)[0].unlink()
    for read in (checkpoint.shapes, lambda folder: checkpoint.load(network(), folder), checkpoint.has_weights):
        with pytest.raises(WeightsError, match=r"part 1 of 2: .*model-00001-of-00002\.safetensors is absent"):
            read(tmp_path)


def test_a_part_that_is_cut_short_is_one_line(tmp_path):
    checkpoint.save(network(), {}, tmp_path)
    part = parts.split(tmp_path)[1]
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(WeightsError, match=r"cannot read .*model-00002-of-00002\.safetensors") as caught:
        checkpoint.load(network(), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_targets_part_that_is_cut_short_is_named(model):
    part = parts.split(model)[1]
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(WeightsError, match=r"cannot read .*model-00002-of-00002\.safetensors"):
        HFTarget(model=str(model), device="cpu")


@pytest.mark.parametrize("quantize", [None, "int4"])
def test_a_native_targets_file_that_is_cut_short_is_one_line_and_keeps_nothing(quantize, tmp_path, monkeypatch):
    monkeypatch.setattr(weight_cache, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(weight_cache, "SMALLEST", 0)
    make_model().save_pretrained(tmp_path / "model")
    (file := tmp_path / "model" / "model.safetensors").write_bytes(file.read_bytes()[:-9])
    with pytest.raises(WeightsError, match=r"cannot read .*model\.safetensors") as caught:
        HFTarget(model=str(tmp_path / "model"), device="cpu", native=True, quantize=quantize)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").glob("**/*.packed"))


def test_pickled_parts_become_one_file_and_an_absent_one_is_named(tmp_path):
    checkpoint.save(wanted := network(), {}, tmp_path)
    paths = parts.split(tmp_path, pickled=True)
    (tmp_path / "out").mkdir()
    convert(pickled(tmp_path), tmp_path / "out")
    checkpoint.load(module := network(), tmp_path / "out")
    assert all(torch.equal(weight, wanted.state_dict()[name]) for name, weight in module.state_dict().items())
    paths[0].unlink()
    with pytest.raises(WeightsError, match=r"part 1 of 2: .*pytorch_model-00001-of-00002\.bin is absent"):
        convert(pickled(tmp_path), tmp_path / "out")
