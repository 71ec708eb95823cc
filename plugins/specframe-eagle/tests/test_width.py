"""MLPs of another inner width: new drafters have it, stored ones keep theirs, engines read it from config.json."""

from __future__ import annotations

import json
from pathlib import Path

import eagle3_texts
import eagle_texts
import pytest
import torch

from specframe import InputError, WeightsError
from specframe_eagle.drafter import Eagle
from specframe_eagle.eagle3 import Eagle3

FLOAT = {"dtype": torch.float32}


@pytest.mark.parametrize(("texts", "kind"), [(eagle_texts, Eagle), (eagle3_texts, Eagle3)])
def test_a_width_is_stored_and_comes_back_without_being_named(texts, kind, tmp_path: Path) -> None:
    drafter = texts.bound(intermediate_size=20, **FLOAT)
    drafter.module.bfloat16().float()
    assert drafter.network.layer.layer.mlp.up_proj.weight.shape[0] == 20
    drafter.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["intermediate_size"] == 20
    target = texts.target(**FLOAT)
    assert target.config.intermediate_size != 20, "the target keeps its own"
    again = kind(weights=str(tmp_path))
    again.bind(target)
    ours = again.module.state_dict()
    assert all(torch.equal(weight, ours[name]) for name, weight in drafter.module.state_dict().items())
    with pytest.raises(WeightsError, match="20 wide, not 12"):
        kind(weights=str(tmp_path), intermediate_size=12).bind(target)


@pytest.mark.parametrize("kind", [Eagle, Eagle3])
def test_no_width_below_one(kind) -> None:
    with pytest.raises(InputError, match="at least 1"):
        kind(intermediate_size=0)


@pytest.mark.parametrize("form", ["vllm", "sglang", "eagle"])
def test_engines_read_the_width(form: str) -> None:
    drafter = eagle_texts.bound(bias=False, intermediate_size=20, **FLOAT)
    assert drafter.export(form).config["intermediate_size"] == 20
