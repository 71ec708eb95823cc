"""An index of weights leads to safetensors files in its folder, and nowhere else."""

import json

import pytest
import torch

from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import WeightsError
from specframe.neural.weights.locate import INDEX, check_shards
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
