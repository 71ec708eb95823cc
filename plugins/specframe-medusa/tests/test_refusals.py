"""Options, targets and checkpoints that do not fit are refused in one line that names what does."""

from __future__ import annotations

from pathlib import Path

import medusa_fakes as fakes
import pytest
import torch
from safetensors.torch import load_file, save_file

from specframe import CompositionError, InputError, WeightsError
from specframe_medusa.hydra import Hydra
from specframe_medusa.medusa import Medusa
from specframe_medusa.typical import Typical

MAKES = [Medusa, lambda **o: Hydra(**o, prefix=True)]
PAIRS = [(MAKES[0], "medusa_lm_head"), (MAKES[1], "hydra_lm_head")]


def bind(drafter):
    drafter.bind(fakes.target())
    return drafter


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (Medusa, {"heads": 0}),
        (Medusa, {"layers": 0}),
        (Hydra, {"heads": -1}),
        (Hydra, {"layers": 0}),
        (Hydra, {"dropout": 1.0}),
        (Typical, {"epsilon": 0.0}),
        (Typical, {"delta": 1.5}),
    ],
)
def test_options_out_of_range(make, options):
    with pytest.raises(InputError, match=next(iter(options))):
        make(**options)


@pytest.mark.parametrize("make", MAKES)
def test_what_is_no_neural_target(make, tmp_path):
    with pytest.raises(CompositionError, match="target hf"):
        make().bind(object())
    with pytest.raises(CompositionError, match="bind"):
        make().save(tmp_path)


@pytest.mark.parametrize(("make", "file"), PAIRS)
def test_pickled_weights_are_never_loaded(make, file, tmp_path):
    torch.save({}, tmp_path / f"{file}.pt")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match=rf"Pickled weights are not loaded; convert {file}\.pt once: python -c"):
        bind(make(weights=str(tmp_path)))


def test_the_conversion_that_is_offered_works(tmp_path, monkeypatch):
    drafter = bind(Medusa(heads=2, layers=2))
    torch.save(dict(drafter.module.state_dict()), tmp_path / "medusa_lm_head.pt")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(WeightsError) as refusal:
        bind(Medusa(heads=2, layers=2, weights=str(tmp_path)))
    program = str(refusal.value).split('python -c "')[1].rstrip('"')
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    again = bind(Medusa(heads=2, layers=2, weights=str(tmp_path)))
    assert all(torch.equal(a, b) for a, b in zip(drafter.module.parameters(), again.module.parameters(), strict=True))


@pytest.mark.parametrize(("make", "file"), PAIRS)
def test_tensors_that_do_not_fit_are_all_listed(make, file, tmp_path):
    bind(make(heads=2)).publish(tmp_path, base="someone-else/target")
    path = tmp_path / f"{file}.safetensors"
    weights = load_file(path)
    lost, odd = sorted(name for name in weights if "linear.bias" in name)[:2]
    weights["odd.weight"] = weights.pop(lost)
    weights[odd] = torch.zeros(3)
    save_file(weights, path)
    with pytest.raises(WeightsError) as refusal:
        bind(make(heads=2, weights=str(tmp_path)))
    for part in (f"{lost}: missing", "odd.weight: unexpected", f"{odd}: has shape [3]"):
        assert part in str(refusal.value)


@pytest.mark.parametrize("make", MAKES)
@pytest.mark.parametrize("own", [False, True])
def test_another_number_of_heads(make, own, tmp_path):
    drafter = bind(make(heads=3))
    if own:
        drafter.save(tmp_path)
    else:
        drafter.publish(tmp_path, base="someone-else/target")
    with pytest.raises(WeightsError, match=r"3 heads, and the drafter 2: set drafter\.heads=3"):
        bind(make(heads=2, weights=str(tmp_path)))


def test_another_drafters_checkpoint(tmp_path):
    bind(Hydra()).save(tmp_path)
    with pytest.raises(WeightsError, match="drafter 'hydra'; needed is 'medusa'"):
        bind(Medusa(weights=str(tmp_path)))


def test_heads_of_another_target(tmp_path):
    bind(Hydra()).publish(tmp_path, base="someone-else/target")
    target = fakes.target()
    target._embedding = target._embedding.flip(0)
    with pytest.raises(WeightsError, match="belong to another target"):
        Hydra(weights=str(tmp_path)).bind(target)


def test_no_such_folder(tmp_path: Path):
    with pytest.raises(WeightsError, match="nowhere"):
        bind(Medusa(weights=str(tmp_path / "nowhere")))
