"""Options, binding, training and checkpoints."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import falcon_fakes as fakes
import pytest
import torch
from safetensors.torch import load_file, save_file

from specframe import InputError, WeightsError
from specframe.plugin import FeatureDrafter, NeuralTarget
from specframe.testing import check_refusals, tiny_target
from specframe_falcon import network
from specframe_falcon.drafter import Falcon


def bound(block: int = 2, weights: Path | None = None, dtype: torch.dtype = torch.float32, layers: int = 1) -> Falcon:
    drafter = Falcon(block=block, weights=None if weights is None else str(weights), layers=layers)
    drafter.bind(fakes.target(dtype))
    return drafter


def states(drafter: Falcon) -> dict[str, torch.Tensor]:
    return dict(drafter.module.state_dict())


def test_it_is_a_feature_drafter_that_reads_the_last_feature() -> None:
    drafter = Falcon()
    assert isinstance(drafter, FeatureDrafter)
    asked: list[frozenset[str]] = []
    target = copy.copy(fakes.target())
    target.request = asked.append
    drafter.bind(target)
    assert asked == [drafter.taps] == [{"last"}]


def test_first_weights_are_always_the_same_and_disturb_no_generator() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = states(bound())
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(4)
    second = states(bound())
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("options", [{"block": 0}, {"layers": 0}, {"dropout": 1.0}, {"dropout": -0.1}])
def test_options_out_of_range(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        Falcon(**options)


def test_it_names_what_it_needs() -> None:
    check_refusals(Falcon, bound)


@pytest.mark.parametrize(("block", "layers"), [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_gradients_reach_every_weight_of_the_module_and_nothing_else(block: int, layers: int) -> None:
    drafter, target = bound(block, layers=layers), fakes.target(torch.float32)
    features, tokens = fakes.pairs(9, torch.float32)
    predicted = drafter.unroll(features[None], tokens[None]).features[:, :, 0]
    assert predicted.shape == features[None].shape
    loss = (predicted - features).square().mean() + drafter.logits(predicted).logsumexp(-1).mean()
    loss.backward()
    for name, weight in drafter.module.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name
    shared = {id(weight) for weight in target.model.parameters()}
    assert not shared & {id(tensor) for tensor in drafter.module.state_dict(keep_vars=True).values()}
    assert all(weight.grad is None for weight in target.model.parameters())


@pytest.mark.parametrize("supported", [False, network.multiplies_bfloat16()])
def test_it_trains_under_autocast_on_every_processor(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "multiplies_bfloat16", lambda: supported)
    drafter = bound(2)
    features, tokens = fakes.pairs(9, torch.float32)
    exact = drafter.unroll(features[None], tokens[None]).features
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        found = drafter.unroll(features[None], tokens[None]).features
    torch.testing.assert_close(found.float(), exact, rtol=0.1, atol=0.1)
    found.float().square().mean().backward()
    assert all(weight.grad is not None for weight in drafter.module.parameters())


def test_a_position_sees_its_own_block_and_what_is_before() -> None:
    drafter = bound(3)
    features, tokens = fakes.pairs(8, torch.float32)  # blocks: 0 1 | 2 3 4 | 5 6 7
    features.requires_grad_()
    for position, end in enumerate([1, 1, 4, 4, 4, 7, 7, 7]):
        predicted = drafter.unroll(features[None], tokens[None]).features[0, position, 0]
        (reach,) = torch.autograd.grad(predicted.sum(), features)
        assert (reach.abs().sum(-1) > 0).tolist() == [seen <= end for seen in range(8)]


def test_dropout_works_in_training_only() -> None:
    drafter = bound()
    features, tokens = fakes.pairs(6, torch.float32)
    pair = features[None], tokens[None]
    with torch.no_grad():
        assert torch.equal(drafter.unroll(*pair).features, drafter.unroll(*pair).features)
        drafter.module.train()
        assert not torch.equal(drafter.unroll(*pair).features, drafter.unroll(*pair).features)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_saved_comes_back_bit_by_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    drafter = bound(3, dtype=dtype)
    with torch.no_grad():
        for weight in drafter.module.parameters():
            weight.copy_(torch.randn(weight.shape).bfloat16())
    drafter.save(tmp_path)
    again = states(bound(3, tmp_path, dtype))
    for name, weight in states(drafter).items():
        assert again[name].dtype == dtype
        assert torch.equal(weight, again[name]), name


def test_layers_are_stored_and_must_agree(tmp_path: Path) -> None:
    drafter = bound(2, layers=2)
    drafter.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 2
    assert states(bound(2, tmp_path, layers=2)).keys() == states(drafter).keys()
    for layers in (1, 3):
        with pytest.raises(WeightsError, match=r"num_hidden_layers|upper"):
            bound(2, tmp_path, layers=layers)


def test_a_checkpoint_is_small(tmp_path: Path) -> None:
    target = tiny_target(size=256, layers=1, dtype=torch.float32)
    target.config.intermediate_size = 688
    drafter = Falcon()
    drafter.bind(target)
    drafter.save(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 5_000_000


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    bound().save(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["lstm.extra"] = weights.pop("lstm.bias_ih_l0")
    weights["lstm.bias_hh_l0"][3] = torch.nan
    weights["layer.layer.mlp.up_proj.weight"] = torch.zeros(2, 2)
    save_file(weights, file)
    with pytest.raises(WeightsError) as failure:
        bound(2, tmp_path)
    for part in ("lstm.bias_ih_l0: missing", "lstm.extra: unexpected", "not finite", "has shape [2, 2]"):
        assert part in str(failure.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"block": 3}, "block"), ({"hidden_size": 16}, "hidden_size"), ({"format": "eagle"}, "eagle")],
)
def test_a_config_that_contradicts(change: dict[str, object], words: str, tmp_path: Path) -> None:
    bound().save(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(WeightsError, match=words):
        bound(2, tmp_path)


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="nowhere"):
        bound(2, tmp_path / "nowhere")


def test_a_head_of_its_own() -> None:
    class Halving:
        def bind(self, target: NeuralTarget) -> None:
            self.target = target

        def __call__(self, features: torch.Tensor) -> torch.Tensor:
            return self.target.head(features) / 2

    plain, halved = bound(), Falcon(head=Halving())
    halved.bind(fakes.target(torch.float32))
    features = torch.randn(3, 8)
    torch.testing.assert_close(plain.logits(features), 2 * halved.logits(features))
