"""Dovetail: a gated fusion and several layers keep every contract, and what reads neither refuses them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import eagle_reference as reference
import eagle_texts as texts
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from specframe import InputError, Sampling, WeightsError
from specframe.certify.compositions.emission import Emission
from specframe.decoding.session import Parts
from specframe.kernel.types import Committed
from specframe.testing import (
    GivenSession,
    GrowingTree,
    check_decoding,
    check_drafter,
    check_proposals,
    check_training,
    random_teacher,
    shake,
    tiny_target,
)
from specframe_eagle.drafter import Eagle

SECTION = "{use: eagle, fusion: gated, layers: 2}"
LOSSES = "[{use: feature-regression, weight: 1.0}, {use: cross-entropy, weight: 0.1}]"


class After(Eagle):
    """A drafter that gets the newest features of the cycle before: the mistake of a copy that is read too early."""

    last: Mapping[str, Tensor] | None = None

    def commit(self, committed: Committed) -> None:
        """Takes in these tokens with the newest features of the last commit; a prompt comes with its own."""
        newest = {tap: features[:, -1:] for tap, features in committed.features.items()}
        if committed.prompt is None and self.last is not None:
            late = {tap: self.last[tap].expand_as(features) for tap, features in committed.features.items()}
            committed = replace(committed, features=late)
        self.last = newest
        super().commit(committed)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows."""
        if self.last is not None:
            self.last = {tap: features[rows] for tap, features in self.last.items()}
        super().keep(rows)


def sessions(rows: int) -> GivenSession:
    """Random texts of the small target."""
    return GivenSession.of(random_teacher(texts.target(), rows, 30))


@pytest.mark.parametrize("options", [{"fusion": "gated"}, texts.DOVETAIL])
def test_features_of_the_cycle_before_are_found_out(options: dict[str, object]) -> None:
    drafter = After(**options)
    drafter.bind(texts.target())
    shake(drafter.module, seed=2)
    with pytest.raises(AssertionError):
        check_proposals(drafter, sessions, reference.literal(drafter))


@pytest.mark.parametrize(("tree", "verifier"), texts.COMPOSITIONS)
@pytest.mark.parametrize("options", [{"fusion": "gated"}, {"layers": 2}, texts.DOVETAIL])
def test_output_is_distributed_as_the_target_s(tree: object, verifier: type, options: dict[str, object]) -> None:
    target = tiny_target(vocab=3, layers=1)
    drafter = Eagle(**options)
    drafter.bind(target)
    shake(drafter.network, by=1.0)
    parts = Parts(target, drafter, tree(), verifier())
    assert Emission("", lambda: parts, Sampling(temperature=1.0), 3, (0, 2, 1)).compare(budget=200_000).tv < 1e-9


@pytest.mark.sampled
def test_it_keeps_the_contract_of_drafters() -> None:
    check_drafter(lambda: Eagle(fusion="gated", layers=2))


def test_it_trains_by_recipe() -> None:
    check_training(SECTION, LOSSES, rollout="teacher-forced", steps=90)


@pytest.mark.parametrize(
    "tree",
    ["{use: dynamic, depth: 4, width: 3, nodes: 10}", "{use: chain, depth: 3, draw: without_replacement}"],
)
def test_it_decodes_by_recipe(tree: str) -> None:
    check_decoding(SECTION, tree)


def test_what_is_saved_comes_back_bit_by_bit_without_naming_a_part(tmp_path: Path) -> None:
    drafter = texts.bound(dtype=torch.float32, **texts.DOVETAIL)
    drafter.module.bfloat16().float()
    drafter.save(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert {"fc.gate.weight", "fc.norm.weight", "layers.1.input_layernorm.weight"} <= names
    assert "layers.0.input_layernorm.weight" not in names
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 2
    again = Eagle(weights=str(tmp_path))
    again.bind(texts.target(dtype=torch.float32))
    ours = again.module.state_dict()
    assert ours.keys() == drafter.module.state_dict().keys()
    assert all(torch.equal(weight, ours[name]) for name, weight in drafter.module.state_dict().items())


def test_a_part_that_weights_lack_is_named(tmp_path: Path) -> None:
    texts.bound(dtype=torch.float32).save(tmp_path)
    for options, message in (({"fusion": "gated"}, "no gated fusion"), ({"layers": 2}, "has 1 layers, not 2")):
        with pytest.raises(WeightsError, match=message):
            Eagle(weights=str(tmp_path), **options).bind(texts.target(dtype=torch.float32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 0}, "layers must be at least 1"),
        ({"fusion": "gated", "feature_sampling": True}, "choose one"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Eagle(**options)


@pytest.mark.parametrize("form", ["vllm", "sglang", "eagle"])
def test_engines_that_read_neither_are_refused_by_name(form: str) -> None:
    drafter = texts.bound(dtype=torch.float32, bias=False, **texts.DOVETAIL)
    with pytest.raises(WeightsError, match=r"gated fusion.*not known there; it has 2 decoder layers"):
        drafter.export(form)


def test_in_eight_bits_it_is_searched_level_by_level_with_nearly_the_logits_of_its_rounded_weights() -> None:
    """Only the rounding of activations remains, which every layer and level passes on."""
    target = tiny_target("llama", vocab=64, dtype=torch.float32, size=64)
    rounded, exact = Eagle(fusion="gated", layers=2, quantize="int8"), Eagle(fusion="gated", layers=2)
    for drafter in (rounded, exact):
        drafter.bind(target)
        with torch.no_grad():
            for parameter in drafter.network.parameters():
                parameter *= 0.5  # nearer to trained weights, whose attention is not all or nothing
    parts = dict(rounded.decoding.named_modules())
    for name, linear in exact.network.named_modules():
        if isinstance(linear, nn.Linear):
            linear.weight.data.copy_(parts[name].blocks.values())
    levels: list[list[Tensor]] = []
    for drafter in (exact, rounded):
        drafter.open(2, 40)
        assert drafter._search is None
        rows = GivenSession.of(random_teacher(target, 2, 20))
        drafter.commit(rows.admit([7, 4]))
        tree = GrowingTree(rows.root, 64)
        first = drafter.expand(tree.frontier([0])).logits
        levels.append([first, drafter.expand(tree.frontier([tree.add(0)])).logits])
    for wanted, found in zip(*levels, strict=True):
        assert 0 < (found - wanted).norm() < 0.05 * wanted.norm()
