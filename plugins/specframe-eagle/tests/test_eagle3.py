"""EAGLE-3: decoding and training are one literal forward over the whole sequence, for every published variant."""

from __future__ import annotations

from collections.abc import Sequence

import eagle3_reference as reference
import eagle3_texts as texts
import pytest
import torch
from torch import Tensor

from specframe import CompositionError, InputError
from specframe.components.drafters.none import NoDrafter
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.rollouts.multi_step import MultiStep
from specframe.plugin import FeatureDrafter
from specframe.testing import GivenSession, GrowingTree, check_drafter, fit, random_teacher, tiny_target
from specframe_eagle.drafter import Eagle
from specframe_eagle.eagle3 import Eagle3
from specframe_eagle.rollout import TrainingTimeTest
from specframe_eagle.wide import published_taps
from specframe_models.specdecpp.head import AcceptanceHead

CLOSE = 1e-5
"""Weights are float64, but rotary angles are float32 in transformers."""


def check(drafter: Eagle3, rows: GivenSession, seed: int = 0) -> None:
    """Grows a ragged tree three levels deep and compares all that is proposed with the reference."""
    tree = GrowingTree(rows.root, texts.VOCAB, seed)
    taps = [torch.cat(parts, -1) for parts in zip(*(rows.tap(tap) for tap in drafter.spec.taps), strict=True)]

    def compare(nodes: Sequence[int]) -> None:
        logits = drafter.expand(tree.frontier(nodes)).logits
        for row in range(len(rows.tokens)):
            for place, node in enumerate(nodes):
                with torch.no_grad():
                    want = reference.chain(drafter, taps[row], rows.tokens[row], tree.tokens[row, tree.path(node)])
                torch.testing.assert_close(logits[row, place, 0], want, rtol=CLOSE, atol=CLOSE)

    compare([0])
    first = [tree.add(0), tree.add(0)]
    compare(first)
    second = [tree.add(first[1]), tree.add(first[0])]
    compare(second)
    compare([tree.add(second[1]), 0])


@pytest.mark.parametrize("options", texts.NETWORKS)
def test_decoding_is_the_literal_forward(options: dict[str, object]) -> None:
    drafter = texts.bound(**options)
    rows = GivenSession.of(random_teacher(drafter.target, 3, 24))
    drafter.open(4, 40)
    drafter.commit(rows.admit([5, 1, 8]))
    check(drafter, rows)
    drafter.commit(rows.advance([1, 3, 2], padding=1))
    check(drafter, rows, 1)
    drafter.keep(rows.keep([2, 0]))
    drafter.commit(rows.advance([2, 1]))
    check(drafter, rows, 2)


@pytest.mark.parametrize("options", texts.NETWORKS)
def test_a_step_of_the_rollout_predicts_what_decoding_does_at_that_depth(options: dict[str, object]) -> None:
    steps, length = 4, 9
    drafter = texts.bound(**options)
    teacher = random_teacher(drafter.target, 2, length)
    taps = torch.cat([teacher.features[tap] for tap in drafter.spec.taps], -1)
    with torch.no_grad():
        student = TrainingTimeTest(steps=steps)(drafter, teacher, 0.0)
        n = length - 1
        logits, mask = student.logits.view(2, steps, n, -1), student.mask.view(2, steps, n)
        position = student.position.view(2, steps, n)
        for row in range(2):
            for step in range(steps):
                for entry in range(n - step):
                    assert position[row, step, entry] == entry + 1 + step
                    assert mask[row, step, entry] == teacher.mask[row, entry + 1 + step]
                    known, drafted = teacher.tokens[row, 1 : entry + 2], teacher.tokens[row, entry + 2 :][:step]
                    want = reference.chain(drafter, taps[row, : entry + 1], known, drafted)
                    torch.testing.assert_close(logits[row, step, entry], want, rtol=CLOSE, atol=CLOSE)
                assert not mask[row, step, n - step :].any()
    assert student.level.view(steps, n).tolist() == [[step + 1] * n for step in range(steps)]


def test_the_rollout_is_hass_s_number_by_number_but_gradients_flow_through_its_states() -> None:
    drafter = texts.bound(fc_norm=True)
    teacher = random_teacher(drafter.target, 2, 10)
    deep, shallow = TrainingTimeTest(steps=3)(drafter, teacher, 0.0), MultiStep(steps=3, noise=0)(drafter, teacher, 0.0)
    ours, theirs = deep.logits.view(2, 3, 9, -1), shallow.logits.view(2, 3, 9, -1)
    for step in range(3):
        torch.testing.assert_close(ours[:, step, : 9 - step], theirs[:, step, step:])

    def reach(logits: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(logits.sum(), drafter.network.norm.weight, retain_graph=True)
        return gradient

    torch.testing.assert_close(reach(ours[:, 0]), reach(theirs[:, 0]))
    layer = drafter.network.layer.layer.mlp.down_proj.weight
    (through,) = torch.autograd.grad(ours[:, 2, 0].sum(), layer, retain_graph=True)
    (stopped,) = torch.autograd.grad(theirs[:, 2, 2].sum(), layer)
    assert not torch.allclose(through, stopped)


@pytest.mark.parametrize("options", texts.NETWORKS)
def test_gradients_reach_every_weight_and_nothing_of_the_target(options: dict[str, object]) -> None:
    drafter = texts.bound(torch.float32, **options)
    teacher = random_teacher(drafter.target, 2, 10)
    student = TrainingTimeTest(steps=3)(drafter, teacher, 0.0)
    CrossEntropy(decay=0.8)(student, teacher).backward()
    for name, weight in drafter.module.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name
    assert all(weight.grad is None for weight in texts.target(torch.float32).model.parameters())


def test_losses_fall_and_eagle_trains_so_too() -> None:
    target = texts.target(torch.float32)
    for drafter in (texts.bound(torch.float32), Eagle()):
        drafter.bind(target)
        lesson = random_teacher(target, 4, 12)
        losses = fit(drafter, [lesson], TrainingTimeTest(steps=3), [(CrossEntropy(decay=0.8), 1.0)], steps=30)
        assert losses[-1] < 0.9 * losses[0]


def test_a_new_drafter_starts_with_the_rows_of_its_head_and_proposes_their_tokens() -> None:
    drafter = Eagle3(head=texts.Trimmed(keep=6))
    drafter.bind(texts.target())
    assert isinstance(drafter, FeatureDrafter) and drafter.support.tolist() == list(range(6))
    rows = texts.target().model.get_output_embeddings().weight[:6]
    torch.testing.assert_close(drafter.network.lm_head.weight, rows)
    shared = {id(weight) for weight in texts.target().model.parameters()}
    assert not shared & {id(weight) for weight in drafter.module.parameters()}
    whole = texts.bound(keep=None)
    assert whole.support is None and len(whole.network.lm_head.weight) == texts.VOCAB


def test_it_reads_an_early_a_middle_and_a_late_layer() -> None:
    assert [published_taps(layers) for layers in (32, 30, 8, 7)] == [(1, 15, 28), (1, 14, 26), (1, 3, 4), (1, 2, 3)]
    assert [published_taps(layers) for layers in (1, 2, 4)] == [(0,), (0, 1), (0, 1)]
    assert texts.bound().taps == {"layer.1", "layer.3", "layer.4"}


def test_a_qwen3_target_gives_a_qwen3_layer() -> None:
    drafter = Eagle3()
    drafter.bind(tiny_target("qwen3", layers=7))
    assert drafter.layout.kind == "qwen3" and hasattr(drafter.network.layer.layer.self_attn, "q_norm")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taps": []}, "taps must be different layers"),
        ({"taps": [1, 1]}, "taps must be different layers"),
        ({"fc_norm": True, "norm_before_fc": True}, "choose one"),
        ({"head": AcceptanceHead()}, "own_head: false"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises((InputError, CompositionError), match=message):
        Eagle3(**options)


def test_a_layer_that_the_target_lacks_is_refused() -> None:
    with pytest.raises(CompositionError, match=r"no feature layer\.9"):
        Eagle3(taps=[1, 9]).bind(texts.target())


def test_the_rollout_refuses_what_it_cannot_unroll() -> None:
    with pytest.raises(InputError, match="steps must be at least 1"):
        TrainingTimeTest(steps=0)
    with pytest.raises(CompositionError, match="needs a drafter of decoder layers and of one level"):
        TrainingTimeTest()(NoDrafter(), random_teacher(texts.target(), 1, 4), 0.0)


@pytest.mark.parametrize("options", [{}, {"fc_norm": True, "norm_output": True}, {"own_head": False}])
def test_it_keeps_the_contract_of_drafters(options: dict[str, object]) -> None:
    check_drafter(lambda: Eagle3(head=texts.Trimmed(keep=2), **options))


def test_a_drafter_fitted_to_texts_starts_with_a_regression() -> None:
    target = texts.target(torch.float32, vocab=40)
    tokens = torch.randint(40, (60, 20), generator=torch.Generator().manual_seed(4))
    teachers = [target.teach(part, torch.ones_like(part, dtype=torch.bool)) for part in tokens.split(1)]
    for options in ({}, {"fc_norm": True}, {"norm_before_fc": True, "layer": "qwen3"}):
        losses = []
        for fitted in (False, True):
            drafter = Eagle3(**options)
            drafter.bind(target)
            teachers = [target.teach(part, torch.ones_like(part, dtype=torch.bool)) for part in tokens.split(1)]
            if fitted:
                assert 0 < drafter.fit(teachers) < 1
            held = random_teacher(target, 8, 20, seed=9)
            with torch.no_grad():
                losses.append(CrossEntropy()(TrainingTimeTest(steps=1)(drafter, held, 0.0), held).item())
        assert losses[1] < losses[0]
    with pytest.raises(InputError, match="fewer than the 32 numbers to be fitted"):
        drafter.fit(teachers[:1])


@pytest.mark.parametrize("own", [True, False])
def test_its_certificate_needs_neither_weights_nor_the_target_s_layers(own: bool) -> None:
    drafter = Eagle3(weights="none/such", head=texts.Trimmed(weights="none/such"), own_head=own, taps=[1, 14, 26])
    small = drafter.untrained(3)
    small.bind(tiny_target("llama", vocab=3))
    assert small.support.tolist() == [0, 1] and small.taps == {"layer.0", "layer.1"}
    assert drafter.weights == "none/such" and drafter.reads == [1, 14, 26]


@pytest.mark.parametrize("options", [{}, {"norm_output": True, "norm_before_residual": True}])
def test_alternatives_are_the_same_tensors_by_other_switches(options: dict[str, bool]) -> None:
    drafter = texts.bound(**options)
    teacher = random_teacher(drafter.target, 2, 9)
    found = drafter.alternatives()
    assert len(found) == 3
    for entries, twin in found.items():
        pairs = zip(twin.network.parameters(), drafter.network.parameters(), strict=True)
        assert all(one is other for one, other in pairs)
        wanted = texts.bound(
            **options | {name: on == "true" for name, on in (e.split(": ") for e in entries.split(", "))}
        )
        wanted.network.load_state_dict(drafter.network.state_dict())
        made, same = (MultiStep(steps=3, noise=0.0)(each, teacher, 1.0).logits for each in (twin, wanted))
        torch.testing.assert_close(made, same, rtol=0, atol=0)
        assert not torch.equal(made, MultiStep(steps=3, noise=0.0)(drafter, teacher, 1.0).logits)
