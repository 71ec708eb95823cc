"""Options, binding and checkpoints: what is saved comes back, and what does not fit is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import parallelspec_fakes as fakes
import pytest
import torch
from safetensors.torch import load_file, save_file

from specframe import CompositionError, InputError, WeightsError
from specframe.components.heads import FullHead
from specframe.components.rollouts.multi_step import MultiStep
from specframe.testing import GrowingTree, check_refusals, random_teacher
from specframe_falcon.glancing import Glancing
from specframe_parallelspec.drafter import ParallelSpec


def loaded(folder: Path, dtype: torch.dtype = torch.float64, **options: object) -> ParallelSpec:
    drafter = ParallelSpec(weights=str(folder), **options)
    drafter.bind(fakes.target(dtype))
    return drafter


def test_first_weights_are_always_the_same_and_disturb_no_generator() -> None:
    def states(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        drafter = ParallelSpec()
        drafter.bind(fakes.target())
        assert torch.equal(before, torch.get_rng_state())
        return dict(drafter.module.state_dict())

    first, second = states(3), states(4)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("shape", fakes.SHAPES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_is_saved_comes_back_bit_by_bit(shape: dict[str, object], dtype: torch.dtype, tmp_path: Path) -> None:
    drafter = fakes.bound(dtype, **shape)
    with torch.no_grad():
        for weight in drafter.module.parameters():
            weight.copy_(weight.bfloat16())
    drafter.save(tmp_path)
    again = loaded(tmp_path, dtype, **shape).module.state_dict()
    for name, weight in drafter.module.state_dict().items():
        assert again[name].dtype == dtype
        assert torch.equal(weight, again[name]), name
    stored = set(load_file(tmp_path / "model.safetensors"))
    assert stored == set(drafter.module.state_dict()), "nothing of the target is saved"


@pytest.mark.parametrize("shape", fakes.SHAPES)
@pytest.mark.parametrize("masks", [1, 2])
@torch.no_grad()
def test_of_more_masks_the_first_predict_what_they_did(shape: dict[str, object], masks: int, tmp_path: Path) -> None:
    many = fakes.bound(**{**shape, "masks": 3})
    many.save(tmp_path)
    few, many = loaded(tmp_path, **{**shape, "masks": masks}), loaded(tmp_path, **{**shape, "masks": 3})
    teacher = random_teacher(fakes.target(), 2, 7)
    inputs = teacher.features["last"], teacher.tokens
    assert torch.allclose(few.unroll(*inputs).hidden, many.unroll(*inputs).hidden[:, :, : masks + 1], atol=1e-12)
    few.save(tmp_path / "few")
    assert loaded(tmp_path / "few", **{**shape, "masks": masks}).module.masks.shape[0] == masks


def test_weights_that_do_not_fit_are_all_listed(tmp_path: Path) -> None:
    fakes.bound().save(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["odd"] = weights.pop("fc.bias")
    weights["masks"] = torch.full_like(weights["masks"], torch.nan)
    save_file(weights, file)
    with pytest.raises(WeightsError) as failure:
        loaded(tmp_path)
    for part in ("fc.bias: missing", "odd: unexpected", "masks: "):
        assert part in str(failure.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"masks": 3}, "masks: the checkpoint has 3, needed is 4"),
        ({"features": False}, "features: the checkpoint has False, needed is True"),
        ({"hidden_size": 16}, "hidden_size"),
        ({"vocab_size": 12}, "vocab_size"),
        ({"format": "eagle"}, "'eagle'"),
    ],
)
def test_a_config_that_contradicts(change: dict[str, object], words: str, tmp_path: Path) -> None:
    fakes.bound().save(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(WeightsError, match=words):
        loaded(tmp_path)


def test_it_names_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use the drafter eagle"):
        ParallelSpec(masks=0)
    check_refusals(ParallelSpec, fakes.bound)
    with pytest.raises(CompositionError, match="before anything was committed"):
        fakes.bound().expand(GrowingTree(torch.zeros(1, dtype=torch.int64), fakes.VOCAB).frontier([0]))
    with pytest.raises(WeightsError, match="nowhere"):
        loaded(tmp_path / "nowhere")


@pytest.mark.parametrize("rollout", [Glancing(), MultiStep()])
def test_rollouts_that_feed_features_back_are_refused(rollout: object) -> None:
    drafter = fakes.bound()
    with pytest.raises(CompositionError, match="use the rollout all-levels or groups"):
        rollout(drafter, random_teacher(fakes.target(), 1, 6), 0.0)


def test_a_head_of_its_own() -> None:
    class Halving(FullHead):
        def __call__(self, features: torch.Tensor) -> torch.Tensor:
            return super().__call__(features) / 2

    plain, halved = fakes.bound(masks=1), fakes.bound(masks=1, head=Halving())
    committed = fakes.session(2).admit([3, 2])
    for drafter in (plain, halved):
        drafter.open(2, 20)
        drafter.commit(committed)
    root = GrowingTree(committed.root, fakes.VOCAB).frontier([0])
    torch.testing.assert_close(plain.expand(root).logits, 2 * halved.expand(root).logits)
