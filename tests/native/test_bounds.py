"""Tensors that the native passes would read beyond are refused, and what is not a number reaches the result."""

from __future__ import annotations

import pytest
import torch

from specframe.native.blocks import round_to_blocks
from specframe.native.bounds import unlike
from specframe.native.decoder import PackedLayers
from specframe.native.linear import QuantizedLinear
from specframe.native.visibility import Listed, Mask, Tree
from tests.native.layers import WIDTH, packed_layers, slots_for, small_model


def tree(rows=2, nodes=3, length=5, base=6):
    return Tree(torch.ones(rows, nodes, nodes).tril().bool(), torch.full((rows,), length), base)


def mask(place=0):
    return Mask(torch.ones(2, 3, 8, dtype=torch.bool), torch.full((2, 3), place))


def listed(place=0, slot=4):
    """Nodes that see the slots of a list before 5, and three slots after these."""
    path = torch.ones(2, 3, 3, dtype=torch.bool)
    return Listed(torch.full((1, 2, 1, 4), slot), path, torch.full((2, 3), place), 5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": 2}, "the cache has 3 rows, not those from 2 to 3"),
        ({"row": -1}, "the cache has 3 rows"),
        ({"visibility": tree(base=10)}, "the cache has 12 slots, not those from 0 to 12"),
        ({"visibility": tree(length=7)}, "lengths are from 0 to 6, not from 7 to 7"),
        ({"visibility": tree(length=-1)}, "lengths are from 0"),
        ({"visibility": tree(nodes=2)}, r"what nodes see is bool \[2, 3, 3\]"),
        ({"visibility": mask(place=12)}, "places are from 0 to 11, not from 12 to 12"),
        ({"visibility": listed(place=12)}, "places are from 0 to 11, not from 12 to 12"),
        ({"visibility": listed(slot=5)}, "listed slots are from 0 to 5, not from"),
        ({"positions": torch.full((2, 3), -1)}, "positions are from 0"),
        ({"positions": torch.zeros(2, 3, dtype=torch.int32)}, "positions are int64"),
        ({"positions": torch.zeros(2, 2, dtype=torch.int64)}, r"positions are int64 \[2, 3\]"),
        ({"hidden": torch.zeros(2, 288, 3).mT}, "not contiguous"),
        ({"hidden": torch.zeros(2, 3, 288, dtype=torch.float64)}, r"contiguous float32 on a CPU, not torch.float64"),
        ({"hidden": torch.zeros(2, 3, 288, device="meta")}, "on a CPU, not torch.float32 on meta"),
        ({"hidden": torch.zeros(2, 3, 32)}, r"\[B, N, 288\]"),
        ({"taps": {"layer.0": torch.zeros(2, 2, 288)}}, "hidden states and taps"),
        ({"embeddings": torch.zeros(2, 2, 288)}, "embeddings are"),
        ({"ending": torch.zeros(288, dtype=torch.bfloat16)}, "contiguous float32"),
    ],
)
def test_what_native_code_would_read_beyond_is_refused(changes, message):
    packed = packed_layers(4, 2, 16)
    given = {"hidden": torch.zeros(2, 3, 288), "positions": torch.zeros(2, 3, dtype=torch.int64), "visibility": tree()}
    cache = slots_for(packed, 3, 12)
    packed.run(**given, cache=cache)
    before = cache.tensor.clone()
    with pytest.raises(ValueError, match=message):
        packed.run(**(given | changes), cache=cache)
    assert torch.equal(cache.tensor, before)


def test_a_cache_of_other_layers_is_refused():
    packed, other = packed_layers(4, 2, 16), packed_layers(4, 2, 16, layers=3)
    with pytest.raises(ValueError, match="other layers or heads"):
        packed.run(torch.zeros(2, 3, 288), torch.zeros(2, 3, dtype=torch.int64), tree(), slots_for(other, 2, 12))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("strange", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_spoils_its_row_alone(strange, bits):
    layer, x = QuantizedLinear(round_to_blocks(torch.randn(32, 96), bits)), torch.randn(3, 96)
    wanted = layer(x)
    x[1, 40] = strange
    found = layer(x)
    assert not found[1].isfinite().any()
    assert torch.equal(found[[0, 2]], wanted[[0, 2]])


@pytest.mark.parametrize("place", ["keys", "values", "hidden"])
def test_what_is_no_number_in_attention_reaches_the_result(place):
    packed = packed_layers(4, 2, 16)
    cache = slots_for(packed, 2, 12)
    hidden = torch.randn(2, 3, 288)
    if place == "hidden":
        hidden[1, 0, 5] = float("nan")
    else:
        cache.tensor[int(place == "values"), 1, :, 2, 3] = float("nan")
    packed.run(hidden, torch.zeros(2, 3, dtype=torch.int64), tree(), cache)
    assert hidden[0].isfinite().all()
    assert hidden[1].isnan().all()


def test_layers_whose_matrices_have_other_sizes_are_refused():
    """Native code takes sizes from the config, and would write beyond the states."""
    model = small_model(4, 2, 32)
    model.layers[1].mlp.down_proj = torch.nn.Linear(96, 2 * WIDTH, bias=False)
    assert unlike(model.config, model.rotary_emb, list(model.layers)) == "its MLP gives other states than it takes"
    with pytest.raises(ValueError, match=r"down is \[288, 96\], not \[576, 96\]"):
        PackedLayers(model.config, model.rotary_emb, list(model.layers))
