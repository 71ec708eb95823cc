"""What a neural drafter holds, and what it says when something is not there yet."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from specframe import Committed, CompositionError, NeuralTarget, Prompts, WeightsError
from specframe.components.targets.table import TableTarget
from specframe.neural import Binding, checkpoint, neural_target, output_weight, seeded, tree_policy


class Diary:
    """A session that notes what it hears."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.heard: list[object] = []

    def commit(self, news: Committed) -> None:
        assert not torch.is_grad_enabled()
        self.heard.append(news)

    def keep(self, rows: torch.Tensor) -> None:
        assert not torch.is_grad_enabled()
        self.heard.append(rows.tolist())


def target() -> TableTarget:
    return TableTarget(vocab=5)


def news(prompt: bool) -> Committed:
    ones = torch.ones(2, 1, dtype=torch.int64)
    return Committed(ones, ones[:, 0], {}, ones[:, 0], Prompts(ones, ones[:, 0]) if prompt else None)


def test_what_is_not_there_yet_is_refused_in_the_drafters_name() -> None:
    binding: Binding[nn.Linear, Diary] = Binding("mine")
    for name in ("target", "network"):
        with pytest.raises(CompositionError, match=r"drafter mine was used before bind\(target\)"):
            getattr(binding, name)
    assert not list(binding.module.parameters())
    with pytest.raises(CompositionError, match="drafter mine was asked for a draft before anything was committed"):
        _ = binding.session
    binding.keep(torch.tensor([0]))


def test_the_first_commit_starts_a_session_and_open_and_bind_end_it() -> None:
    binding: Binding[nn.Linear, Diary] = Binding("mine")
    network = nn.Linear(1, 1)
    binding.bind(neural_target(target(), "mine"), network)
    assert binding.module is binding.network is network
    binding.commit(news(prompt=True), Diary)
    first = binding.session
    binding.commit(news(prompt=False), Diary)
    binding.keep(torch.tensor([1]))
    assert binding.session is first and first.batch == 2
    assert len(first.heard) == 3 and first.heard[2] == [1]
    binding.open()
    binding.commit(news(prompt=True), Diary)
    assert binding.session is not first and len(binding.session.heard) == 1
    twin = copy.deepcopy(binding)
    assert twin.network is not network and twin.session is not binding.session
    binding.bind(binding.target, network)
    with pytest.raises(CompositionError, match="before anything was committed"):
        _ = binding.session


def test_other_targets_and_no_tree_are_refused() -> None:
    with pytest.raises(CompositionError, match="drafter mine reads a neural target's features, and object has none"):
        neural_target(object(), "mine")  # type: ignore[arg-type]
    with pytest.raises(CompositionError, match="drafter mine needs a tree policy"):
        tree_policy(None, "mine")


def test_first_weights_are_the_same_in_every_run_and_disturb_nobody() -> None:
    model: NeuralTarget = target()
    before = torch.get_rng_state()
    one = seeded(lambda: nn.Linear(3, 3), model)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(7)
    two = seeded(lambda: nn.Linear(3, 3), model)
    assert torch.equal(one.weight, two.weight)
    assert not one.training and one.weight.dtype == model.dtype


def test_the_weight_of_the_targets_head() -> None:
    model: NeuralTarget = target()
    features = torch.randn(4, model.config.hidden_size, dtype=model.dtype)
    torch.testing.assert_close(features @ output_weight(model).T, model.head(features))


def test_a_config_that_says_otherwise(tmp_path) -> None:
    told = {"format": "mine", "hidden_size": 3, "extra": True}
    checkpoint.save(nn.Linear(1, 1), told, tmp_path)
    assert checkpoint.check(tmp_path, {"format": "mine", "hidden_size": 3}) == told
    with pytest.raises(WeightsError) as refusal:
        checkpoint.check(tmp_path, {"format": "yours", "hidden_size": 3, "block": 2}, "router")
    assert str(refusal.value) == (
        f"the router in {tmp_path} does not fit:\n"
        "  format: the checkpoint says 'mine', needed is 'yours'\n"
        "  block: the checkpoint says None, needed is 2"
    )
