"""The shell of neural drafters: what is not there yet, sessions, heads and checkpoints."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from specframe import CompositionError, WeightsError
from specframe.components.targets.table import TableTarget
from specframe.neural import FeatureNetwork, NeuralDrafter, checkpoint, neural_target, output_weight, seeded
from specframe.neural.layer import DecoderLayer
from specframe.plugin import NeuralTarget
from specframe.testing import GivenSession, GrowingTree, shake
from specframe_medusa.hydra import Hydra
from specframe_medusa.medusa import Medusa
from specframe_models.specdecpp.head import AcceptanceHead

VOCAB, SIZE = 7, 8


class Network(FeatureNetwork):
    """The smallest: a map and a layer."""

    def __init__(self, config) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layer = DecoderLayer(config)

    def inputs(self, pairs, state, counts=None):
        return self.fc(pairs), state


class Mine(NeuralDrafter[Network]):
    """A family in two methods."""

    name = "mine"

    def build(self, target: NeuralTarget) -> Network:
        return Network(target.config)

    def identity(self, config):
        return {"kind": 3}


def target() -> TableTarget:
    return TableTarget(vocab=VOCAB, hidden=SIZE)


def bound(**options) -> Mine:
    drafter = Mine(**options)
    drafter.bind(target())
    return drafter


def root(session: GivenSession):
    return GrowingTree(session.root, VOCAB).frontier([0])


def test_what_is_not_there_yet_is_refused_in_the_drafters_name(tmp_path) -> None:
    drafter = Mine()
    for ask in (lambda: drafter.target, lambda: drafter.network, lambda: drafter.save(tmp_path)):
        with pytest.raises(CompositionError, match=r"drafter mine was used before bind\(target\)"):
            ask()
    with pytest.raises(CompositionError, match=r"before bind\(target\)"):
        drafter.keep(torch.tensor([0]))
    assert not list(drafter.module.parameters())
    drafter.bind(target())
    with pytest.raises(CompositionError, match="drafter mine was used before anything was committed"):
        drafter.expand(GrowingTree(torch.tensor([1]), VOCAB).frontier([0]))
    with pytest.raises(CompositionError, match="drafter mine needs a tree policy"):
        drafter.propose(torch.tensor([1]), None, None)
    with pytest.raises(CompositionError, match="drafter mine reads a neural target's features, and object has none"):
        neural_target(object(), "mine")  # type: ignore[arg-type]


@torch.no_grad()
def test_open_begins_a_session_and_bind_ends_it() -> None:
    drafter = bound()
    shake(drafter.module)
    session = GivenSession.random(2, VOCAB, SIZE)
    drafter.open(2, 20)
    drafter.commit(session.admit([3, 5]))
    before = drafter.expand(root(session)).logits
    drafter.open(2, 20)
    again = GivenSession.random(2, VOCAB, SIZE)
    drafter.commit(again.admit([3, 5]))
    assert torch.equal(before, drafter.expand(root(again)).logits)
    drafter.bind(target())
    with pytest.raises(CompositionError, match="before anything was committed"):
        drafter.expand(root(session))


@torch.no_grad()
@pytest.mark.parametrize("make", [Medusa, lambda: Hydra(layers=2)])
def test_rows_that_are_admitted_later_stand_after_the_others(make) -> None:
    drafter, alone = make(), make()
    session = GivenSession.random(3, VOCAB, SIZE)
    for each in (drafter, alone):
        each.bind(target())
        shake(each.module)
        each.open(3, 40)
    drafter.commit(session.admit([3, 5]))
    drafter.commit(session.advance([1, 2]))
    drafter.commit(session.admit([4]))
    all_rows = drafter.expand(root(session)).logits
    assert len(all_rows) == 3
    drafter.keep(session.keep([2, 0]))
    torch.testing.assert_close(drafter.expand(root(session)).logits, all_rows[[2, 0]])
    features, tokens = (torch.stack([part[0]]) for part in (session.features, session.tokens))
    solo = GivenSession(features, tokens)
    alone.commit(solo.admit([4]))
    torch.testing.assert_close(alone.expand(root(solo)).logits, all_rows[2:])


def test_nothing_that_is_committed_or_drafted_has_gradients() -> None:
    drafter, session = bound(), GivenSession.random(1, VOCAB, SIZE)
    drafter.open(1, 20)
    drafter.commit(session.admit([3]))
    assert not drafter.expand(root(session)).logits.requires_grad


def test_a_head_with_weights_is_trained_and_saved_and_the_network_is_not(tmp_path) -> None:
    head = AcceptanceHead()
    drafter = bound(head=head)
    assert drafter.module is head.module and not any(w.requires_grad for w in drafter.network.parameters())
    drafter.save(tmp_path)
    assert checkpoint.read_config(tmp_path)["format"] == "acceptance"
    plain = bound()
    assert plain.module is plain.network and all(w.requires_grad for w in plain.network.parameters())


def test_what_is_saved_is_loaded_and_what_does_not_fit_is_listed(tmp_path) -> None:
    drafter = bound()
    shake(drafter.module)
    with torch.no_grad():
        for weight in drafter.module.parameters():
            weight.copy_(weight.bfloat16())
    drafter.save(tmp_path)
    config = checkpoint.read_config(tmp_path)
    assert (config["format"], config["kind"], config["hidden_size"]) == ("mine", 3, SIZE)
    again = bound(weights=str(tmp_path))
    for one, two in zip(drafter.module.parameters(), again.module.parameters(), strict=True):
        assert torch.equal(one, two)

    class Theirs(Mine):
        name = "theirs"

        def identity(self, config):
            return {"kind": 4}

    with pytest.raises(WeightsError) as refusal:
        Theirs(weights=str(tmp_path)).bind(target())
    assert str(refusal.value) == (
        f"the drafter in {tmp_path} does not fit:\n"
        "  format: the checkpoint has 'mine', needed is 'theirs'\n"
        "  kind: the checkpoint has 3, needed is 4"
    )


def test_another_reader_shares_all_but_the_logits() -> None:
    drafter = bound()
    twin = drafter.reading(lambda hidden: hidden[..., :2])
    hidden = torch.randn(3, SIZE, dtype=torch.float64)
    assert torch.equal(twin.logits(hidden), hidden[:, :2]) and twin.network is drafter.network
    assert torch.equal(drafter.logits(hidden), drafter.target.head(hidden))


def test_first_weights_are_the_same_in_every_run_and_disturb_no_generator() -> None:
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


def test_a_drafter_of_another_vocabulary_is_refused(tmp_path) -> None:
    bound().save(tmp_path)
    other = Mine(weights=str(tmp_path))
    with pytest.raises(WeightsError, match="trained for a target of 7 tokens, and this target has 9"):
        other.bind(TableTarget(vocab=9, hidden=SIZE))


@pytest.mark.parametrize("more", [-1, 1])
def test_a_drafter_serves_a_target_whose_vocabulary_is_padded_otherwise(more, tmp_path) -> None:
    """It shares the target's embedding and head, so nothing of it depends on the number of rows."""
    small = Mine()
    small.bind(TableTarget(vocab=101, hidden=SIZE))
    small.save(tmp_path)
    other = Mine(weights=str(tmp_path))
    other.bind(TableTarget(vocab=101 + more, hidden=SIZE))
    assert (
        other.logits(torch.zeros(1, other.target.config.hidden_size, dtype=other.target.dtype)).shape[-1] == 101 + more
    )
