"""P-EAGLE: decoding and every kept row of training are one literal forward over text and mask rows."""

from __future__ import annotations

import eagle3_texts
import eagle_texts
import peagle_texts as texts
import pytest
import torch

from specframe import CompositionError, InputError, Sampling
from specframe.certify.compositions.emission import Emission
from specframe.components.drafters.none import NoDrafter
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.decoding.session import Parts
from specframe.neural import sample_rows
from specframe.testing import GivenSession, GrowingTree, check_drafter, fit, random_teacher, shake, tiny_target
from specframe.training.validation import measure
from specframe_eagle.eagle3 import Eagle3
from specframe_eagle.parallel.drafter import PEagle
from specframe_eagle.parallel.rollout import COD

CLOSE = {"rtol": 1e-5, "atol": 1e-5}  # weights are float64, but rotary angles are float32 in transformers


@pytest.mark.parametrize("options", texts.NETWORKS)
def test_decoding_is_the_literal_forward(options: dict[str, object]) -> None:
    drafter = texts.bound(**options)
    rows = GivenSession.of(random_teacher(drafter.target, 3, 24))
    drafter.open(4, 40)

    def check() -> None:
        tree = GrowingTree(rows.root, texts.VOCAB)
        logits = drafter.expand(tree.frontier([0])).logits  # [B, 1, K, v]
        taps = [torch.cat(parts, -1) for parts in zip(*(rows.tap(tap) for tap in drafter.spec.taps), strict=True)]
        for row in range(len(rows.tokens)):
            wanted = texts.literal(drafter, taps[row], rows.tokens[row])
            torch.testing.assert_close(logits[row, 0], wanted, **CLOSE)
        tree.descend(0, 1)
        assert torch.equal(drafter.expand(tree.frontier([0, 0])).logits[:, 1], logits[:, 0])

    drafter.commit(rows.admit([5, 1, 8]))
    check()
    drafter.commit(rows.advance([1, 3, 2], padding=1))
    check()
    drafter.keep(rows.keep([2, 0]))
    drafter.commit(rows.advance([2, 1]))
    check()


@pytest.mark.parametrize("options", texts.NETWORKS)
@pytest.mark.parametrize("training", [True, False])
def test_a_kept_row_predicts_what_decoding_does_there(options: dict[str, object], training: bool) -> None:
    drafter = texts.bound(**options)
    drafter.module.train(training)
    teacher = random_teacher(drafter.target, 2, 9)
    taps = torch.cat([teacher.features[tap] for tap in drafter.spec.taps], -1)
    torch.manual_seed(0)
    with torch.no_grad():
        student = COD(keep=0.8)(drafter, teacher, 0.0)
    found = torch.zeros(texts.LEVELS, dtype=torch.int64)
    for row in range(2):
        for number, level in enumerate(student.level.tolist()):
            position = int(student.position[row, number])
            if not student.mask[row, number]:
                continue
            assert teacher.mask[row, position]
            entry = position - level
            wanted = texts.literal(drafter, taps[row, : entry + 1], teacher.tokens[row, 1 : entry + 2])
            torch.testing.assert_close(student.logits[row, number], wanted[level - 1], **CLOSE)
            found[level - 1] += 1
    assert (found > 0).all()
    if not training:
        positions = torch.arange(1, 9)
        wanted = [int(teacher.mask[:, positions[level:]].sum()) for level in range(texts.LEVELS)]
        assert found.tolist() == wanted


def test_rows_are_dropped_as_published_and_only_below_dropped_rows() -> None:
    torch.manual_seed(1)
    counts = torch.ones(2, 200, dtype=torch.bool)
    counts[1, :60] = False
    rows = sample_rows(counts, 8, 0.7, 0.2)
    assert len(rows) == 7
    above = [set(range(200)), set(range(200))]
    for level, (entries, kept) in enumerate(rows, 1):
        for row in range(2):
            mine = entries[row][kept[row]].tolist()
            assert mine == sorted(set(mine)) and set(mine) <= above[row]
            assert counts[row, torch.tensor(mine) + level].all()
            total = int(counts[row].sum())
            assert len(mine) <= int((total - level) * max(0.7**level, 0.2))
            assert len(mine) >= 0.9 * (total - level) * max(0.7**level, 0.2)
            above[row] = set(mine)
    assert [len(entries) for entries, _ in sample_rows(torch.zeros(1, 9, dtype=torch.bool), 4, 0.7, 0.2)] == []
    everything = sample_rows(torch.ones(1, 9, dtype=torch.bool), 4, 1.0, 0.0)
    assert [int(kept.sum()) for _, kept in everything] == [8, 7, 6]


def test_every_row_has_the_same_chance_to_be_kept() -> None:
    torch.manual_seed(2)
    (entries, kept) = sample_rows(torch.ones(4000, 11, dtype=torch.bool), 2, 0.5, 0.0)[0]
    share = torch.zeros(11).index_put_((entries[kept],), torch.ones(int(kept.sum())), accumulate=True) / 4000
    assert share[10] == 0, "there is nothing below the last entry"
    assert (share[:10] - 0.5).abs().max() < 0.05


@pytest.mark.parametrize("options", texts.NETWORKS)
def test_gradients_reach_every_weight_and_nothing_of_the_target(options: dict[str, object]) -> None:
    drafter = texts.bound(torch.float32, **options)
    drafter.module.train()
    teacher = random_teacher(drafter.target, 2, 10)
    CrossEntropy()(COD()(drafter, teacher, 0.0), teacher).backward()
    for name, weight in drafter.module.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name
    assert all(weight.grad is None for weight in eagle3_texts.target(torch.float32).model.parameters())


def test_losses_fall_and_validation_is_every_cycle_s() -> None:
    target = eagle3_texts.target(torch.float32)
    drafter = PEagle(levels=3, layers=2)
    drafter.bind(target)
    lesson = random_teacher(target, 4, 12)
    losses = fit(drafter, [lesson], COD(), [(CrossEntropy(), 1.0)], steps=30)
    assert losses[-1] < 0.9 * losses[0]
    drafter.module.eval()
    figures = measure(drafter, [lesson], [(CrossEntropy(), 1.0, "cross-entropy")], COD())
    assert 1 <= figures["tau"] <= 4 and "accuracy.1" in figures


def test_a_drafter_fitted_to_texts_starts_with_a_regression() -> None:
    target = eagle3_texts.target(torch.float32, vocab=40)
    tokens = torch.randint(40, (60, 20), generator=torch.Generator().manual_seed(4))
    losses = []
    for fitted in (False, True):
        drafter = PEagle(levels=2, layers=2)
        drafter.bind(target)
        if fitted:
            every = [target.teach(part, torch.ones_like(part, dtype=torch.bool)) for part in tokens.split(1)]
            assert 0 < drafter.fit(every) < 1
        held = random_teacher(target, 8, 20, seed=9)
        with torch.no_grad():
            student = COD()(drafter, held, 0.0)
            first = student.level == 1
            surprise, _ = CrossEntropy().values(student, held)
            losses.append(surprise[:, first].mean().item())
    assert losses[1] < losses[0]


@pytest.mark.parametrize("kind", [Eagle3, PEagle])
def test_a_target_that_was_not_asked_for_its_last_feature_can_be_fitted_to(kind: type[Eagle3]) -> None:
    target = HFTarget.from_model(random_model("llama", vocab=40, size=8, layers=7, seed=5))
    drafter = kind()
    drafter.bind(target)
    tokens = torch.randint(40, (60, 20), generator=torch.Generator().manual_seed(4))
    every = (target.teach(part, torch.ones_like(part, dtype=torch.bool)) for part in tokens.split(1))
    assert 0 < drafter.fit(every) < 1


@pytest.mark.parametrize(("tree", "verifier"), eagle_texts.COMPOSITIONS)
@pytest.mark.parametrize("layers", [1, 2])
def test_output_is_distributed_as_the_target_s(tree: object, verifier: type, layers: int) -> None:
    target = tiny_target(vocab=3, layers=1)
    drafter = PEagle(levels=2, layers=layers)
    drafter.bind(target)
    shake(drafter.network, by=1.0)
    parts = Parts(target, drafter, tree(), verifier())
    assert Emission("", lambda: parts, Sampling(temperature=1.0), 3, (0, 2, 1)).compare(budget=200_000).tv < 1e-9


@pytest.mark.sampled
@pytest.mark.parametrize("options", [{"levels": 2}, {"levels": 3, "layers": 2, "own_head": False}])
def test_it_keeps_the_contract_of_drafters(options: dict[str, object]) -> None:
    check_drafter(lambda: PEagle(head=eagle3_texts.Trimmed(keep=2), **options))


def test_several_layers_in_eight_bits_have_nearly_the_same_logits() -> None:
    target = tiny_target("llama", vocab=64, dtype=torch.float32, size=64)
    logits = []
    for quantize in (None, "int8"):
        drafter = PEagle(levels=2, layers=2, quantize=quantize)
        drafter.bind(target)
        drafter.open(2, 40)
        rows = GivenSession.of(random_teacher(target, 2, 20))
        drafter.commit(rows.admit([7, 4]))
        logits.append(drafter.expand(GrowingTree(rows.root, 64).frontier([0])).logits)
    assert (logits[0] - logits[1]).norm() < 0.1 * logits[0].norm()


def test_its_certificate_needs_neither_weights_nor_the_target_s_layers() -> None:
    small = PEagle(weights="none/such", levels=2, layers=2, taps=[1, 14, 26], mask_token=17).untrained(3)
    small.bind(tiny_target("llama", vocab=3))
    assert small.taps == {"layer.0", "layer.1"} and small.network.mask_token == 2 and small.levels == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": 0}, "must be at least 1"),
        ({"layers": 0}, "must be at least 1"),
        ({"taps": [1, 1]}, "peagle: taps must be different layers"),
        ({"mask_token": 11}, "mask_token is 11, and the target has tokens 0 to 10"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises((InputError, CompositionError), match=message):
        texts.bound(**options)


def test_nothing_is_drafted_below_its_levels_and_the_rollout_needs_mask_rows() -> None:
    drafter = texts.bound(levels=2)
    rows = GivenSession.of(random_teacher(drafter.target, 1, 8))
    drafter.open(1, 12)
    drafter.commit(rows.admit([4]))
    tree = GrowingTree(rows.root, texts.VOCAB)
    drafter.expand(tree.frontier([0]))
    with pytest.raises(CompositionError, match="make the tree at most 2 deep, or raise levels"):
        drafter.expand(tree.frontier([tree.add(0)]))
    with pytest.raises(CompositionError, match="needs a drafter with mask rows"):
        COD()(NoDrafter(), random_teacher(drafter.target, 1, 4), 0.0)
    for options in ({"keep": 0.0}, {"keep": 1.5}, {"least": -0.1}):
        with pytest.raises(InputError, match="cod: keep must be"):
            COD(**options)
