"""The router against Eq. 7 and 8, what it reads of the LM head, and its checkpoints."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import coral_reference as reference
import coral_texts as texts
import pytest
import torch

from specframe import CompositionError, InputError, WeightsError
from specframe_coral.groups import edges, group_masses
from specframe_coral.router import Law, Router
from specframe_eagle.drafter import Eagle
from specframe_falcon.drafter import Falcon
from specframe_parallelspec.drafter import ParallelSpec


def features(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("groups", "active"), [(4, 1), (4, 2), (4, 4), (11, 3), (1, 1)])
@torch.no_grad()
def test_it_is_equations_7_and_8(groups: int, active: int) -> None:
    _, head = texts.routed(groups=groups, active=active)
    states = features(2, 3, 2)
    logits = head(states)
    assert logits.shape == (2, 3, 2, texts.VOCAB)
    divided = reference.divide(texts.VOCAB, groups)
    for state, row, whole in zip(
        states.flatten(0, 2), logits.flatten(0, 2), texts.target().head(states).flatten(0, 2), strict=True
    ):
        wanted = reference.routed_law(head.module, state, whole, divided, active)
        assert row.exp().tolist() == pytest.approx(wanted, abs=1e-12)
        assert ((row == -torch.inf) == (torch.tensor(wanted) == 0)).all()
    if active == groups:
        assert torch.allclose(logits.logsumexp(-1), torch.zeros(2, 3, 2, dtype=torch.float64)), "Eq. 8 is normalised"


@pytest.mark.parametrize(("groups", "active"), [(4, 2), (4, 4), (11, 3)])
@torch.no_grad()
def test_the_restricted_law_is_the_lm_head_s_over_what_is_active(groups: int, active: int) -> None:
    _, head = texts.routed(groups=groups, active=active, law=Law.RESTRICTED)
    _, factored = texts.routed(groups=groups, active=active)
    states = features(2, 3, 2)
    logits, whole = head(states), texts.target().head(states)
    read = logits > -torch.inf
    assert torch.equal(read, factored(states) > -torch.inf), "the router reads the same groups"
    assert torch.allclose(logits[read], whole[read], atol=1e-12)
    assert bool(read.all()) == (active == groups)


@pytest.mark.parametrize("law", Law)
@torch.no_grad()
def test_a_node_s_law_depends_on_the_node_alone(law: Law) -> None:
    _, head = texts.routed(groups=5, active=2, law=law)
    states = features(1, 6, 1)
    together = head(states)
    for node in range(6):
        assert torch.allclose(head(states[:, node : node + 1]), together[:, node : node + 1], atol=1e-12)


@torch.no_grad()
def test_only_the_groups_that_a_node_has_are_read_and_for_those_nodes_alone() -> None:
    _, head = texts.routed(groups=5, active=2)
    states = features(1, 4, 1)
    choice = head.module(states.flatten(0, 2)).topk(2).indices  # [4, 2]
    read: dict[int, int] = {}

    def spy(group: int, part):
        def reading(nodes: torch.Tensor) -> torch.Tensor:
            read[group] = read.get(group, 0) + len(nodes)
            return part(nodes)

        return reading

    head._parts = [spy(group, part) for group, part in enumerate(head._parts)]
    head(states)
    assert read == {group: int((choice == group).sum()) for group in set(choice.flatten().tolist())}


def test_parts_share_the_lm_head_s_memory() -> None:
    target = texts.target.__wrapped__()  # one of its own: its weights are changed
    part = target.head_for(slice(2, 5))
    weight = target.model.get_output_embeddings().weight
    states = features(3)
    assert torch.allclose(part(states), target.head(states)[:, 2:5], atol=1e-12)
    before = part(states)
    with torch.no_grad():
        weight *= 2
    assert torch.allclose(part(states), 2 * before, atol=1e-12)
    chosen = torch.tensor([7, 0, 3])
    assert torch.allclose(target.head_for(chosen)(states), target.head(states)[:, chosen], atol=1e-12)


@pytest.mark.parametrize(("vocab", "groups"), [(11, 4), (8, 4), (5, 5), (7, 1), (32000, 16)])
def test_groups_are_consecutive_and_even(vocab: int, groups: int) -> None:
    ends = edges(vocab, groups)
    sizes = [b - a for a, b in pairwise(ends)]
    assert len(sizes) == groups and ends[0] == 0 and ends[-1] == vocab
    assert max(sizes) - min(sizes) <= 1
    law = torch.rand(2, vocab, dtype=torch.float64).softmax(-1)
    wanted = [[sum(row[a:b].tolist()) for a, b in pairwise(ends)] for row in law]
    assert torch.allclose(group_masses(law, groups), torch.tensor(wanted, dtype=torch.float64))


@torch.no_grad()
def test_a_small_vocabulary_has_a_group_for_every_token() -> None:
    _, head = texts.routed(groups=16, active=3)
    assert (head(features(4)) > -torch.inf).sum(-1).tolist() == [3] * 4


@torch.no_grad()
def test_half_precision_gives_laws_in_float32() -> None:
    _, head = texts.routed(dtype=torch.bfloat16, groups=4, active=4)
    logits = head(features(5).bfloat16())
    assert logits.dtype == torch.float32
    assert torch.allclose(logits.logsumexp(-1), torch.zeros(5), atol=1e-4)


@pytest.mark.parametrize("drafter", [Eagle, Falcon, ParallelSpec])
def test_it_is_what_the_drafter_trains_and_saves(drafter: type, tmp_path: Path) -> None:
    made, head = texts.routed(drafter, groups=4)
    assert made.module is head.module
    assert not any(weight.requires_grad for weight in made.network.parameters())
    with torch.no_grad():
        for weight in head.module.parameters():
            weight.copy_(torch.randn_like(weight).bfloat16())
    made.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("trained_for").keys() == {"name", "fingerprint"}
    assert config == {"format": "router", "groups": 4, "hidden_size": 8, "vocab_size": texts.VOCAB}
    again = Router(groups=4, active=3, weights=str(tmp_path))
    again.bind(texts.target())
    assert all(torch.equal(a, b) for a, b in zip(head.module.parameters(), again.module.parameters(), strict=True))
    plain = drafter()
    plain.bind(texts.target())
    assert plain.module is plain.network and all(weight.requires_grad for weight in plain.module.parameters())


def test_first_weights_are_always_the_same_and_disturb_no_generator() -> None:
    before = torch.get_rng_state()
    one, two = (texts.routed(groups=4)[1].module.state_dict() for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_routers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    made, _ = texts.routed(groups=4)
    made.save(tmp_path)
    with pytest.raises(WeightsError, match="groups: the checkpoint has 4, needed is 5"):
        Router(groups=5, weights=str(tmp_path)).bind(texts.target())
    with pytest.raises(WeightsError) as refusal:
        Router(groups=4, weights=str(tmp_path)).bind(texts.target(size=16, vocab=12))
    assert "hidden_size: the checkpoint has 8, needed is 16" in str(refusal.value)
    assert "vocab_size: the checkpoint has 11, needed is 12" in str(refusal.value)
    drafter = Eagle()
    drafter.bind(texts.target())
    drafter.save(tmp_path / "drafter")
    with pytest.raises(WeightsError, match="format: the checkpoint has None"):
        Router(groups=4, weights=str(tmp_path / "drafter")).bind(texts.target())


def test_it_names_what_it_needs() -> None:
    class Whole:
        """A target whose head cannot be divided."""

    with pytest.raises(CompositionError, match="Whole cannot be divided"):
        Router().bind(Whole())
    with pytest.raises(CompositionError, match="bind"):
        Router()(features(1))
    for groups, active in ((4, 5), (4, 0), (0, 0)):
        with pytest.raises(InputError, match="active"):
            Router(groups=groups, active=active)
    made, head = texts.routed(groups=4)
    head.module.train()
    with pytest.raises(CompositionError, match="rollout"):
        made.logits(features(2))
