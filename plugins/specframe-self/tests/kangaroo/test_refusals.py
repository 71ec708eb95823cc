"""Checkpoints come back as they were; what does not fit is refused with a sentence that names what does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kangaroo_fakes as fakes
import pytest
import torch

from specframe import CompositionError, InputError, WeightsError
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.testing import check_refusals, tiny_target
from specframe_self.kangaroo.drafter import Kangaroo


def loaded(folder: Path, target: HFTarget | None = None, exit: int = 2) -> Kangaroo:
    """A drafter with the weights of a folder."""
    drafter = Kangaroo(exit=exit, weights=str(folder))
    drafter.bind(target or fakes.target())
    return drafter


def test_a_saved_adapter_loads_and_gives_the_same(tmp_path: Path) -> None:
    drafter = fakes.bound()
    drafter.network.bfloat16().double()  # as it is stored
    drafter.save(tmp_path)
    again = loaded(tmp_path)
    for name, value in drafter.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[name]), name


def test_it_refuses_what_every_neural_drafter_refuses() -> None:
    check_refusals(lambda: Kangaroo(exit=2), fakes.bound)


@pytest.mark.parametrize(
    ("exit", "target", "line"),
    [
        (1, fakes.target, "exit: the checkpoint has 2, needed is 1"),
        (2, lambda: fakes.target(layers=5), "target_layers: the checkpoint has 4, needed is 5"),
        (2, lambda: fakes.target("qwen2"), "model_type: the checkpoint has 'llama', needed is 'qwen2'"),
        (2, lambda: tiny_target(size=16, layers=4), "hidden_size: the checkpoint has 8, needed is 16"),
        (2, lambda: tiny_target(vocab=13, layers=4), "a target of 11 tokens, and this target has 13"),
    ],
)
def test_an_adapter_of_another_exit_or_target_is_refused(exit: int, target: Any, line: str, tmp_path: Path) -> None:
    fakes.bound().save(tmp_path)
    with pytest.raises(WeightsError, match=line):
        loaded(tmp_path, target(), exit)


def test_another_drafter_s_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"format": "eagle"}))
    with pytest.raises(WeightsError, match="has 'eagle', needed is 'kangaroo'"):
        loaded(tmp_path)


def test_an_exit_that_the_target_does_not_have_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1 layer"):
        Kangaroo(exit=0)
    with pytest.raises(CompositionError, match="the target has 4 layers; leave before the last, not after 4"):
        Kangaroo(exit=4).bind(fakes.target())


def test_a_target_without_layers_is_refused() -> None:
    with pytest.raises(CompositionError, match="a transformers model: use the target hf"):
        Kangaroo(exit=1).bind(TableTarget(vocab=3))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("olmo2", "which a layer of 'olmo2' does not begin with"),
        ("gpt2", "a drafter layer cannot be built for the architecture 'gpt2'"),
    ],
)
def test_an_architecture_without_such_layers_is_refused(kind: str, words: str) -> None:
    with pytest.raises(CompositionError, match=words):
        Kangaroo(exit=1).bind(fakes.target(kind))


def test_drafting_without_a_session_is_refused() -> None:
    with pytest.raises(CompositionError, match=r"before bind\(target\)"):
        Kangaroo(exit=1).open(1, 8)
