"""Group-wise training: what decoding computes, without leaks, and a simulated tau that is the measured one."""

from __future__ import annotations

from pathlib import Path

import parallelspec_fakes as fakes
import parallelspec_reference as reference
import pytest
import torch
from torch import Tensor

import specframe
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.feature_regression import FeatureRegression
from specframe.components.rollouts.teacher_forced import Groups
from specframe.components.targets.table import TableTarget
from specframe.plugin import FeatureDrafter
from specframe.testing import GivenSession, GrowingTree, fit, greedy_texts, random_teacher
from specframe.training.validation import measure
from specframe_parallelspec.drafter import ParallelSpec
from specframe_parallelspec.groups import places, visible

CLOSE = {"rtol": 1e-6, "atol": 1e-6}  # norms and rotary angles are float32 in transformers
SAME = {"rtol": 1e-12, "atol": 1e-12}


def texts(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Made-up features [B, n, D] and the tokens that follow them, [B, n]."""
    committed = fakes.session(batch).admit([length] * batch)
    return committed.features["last"], committed.tokens


@torch.no_grad()
@pytest.mark.parametrize("shape", fakes.SHAPES)
def test_a_group_predicts_what_decoding_gives_there(shape: dict[str, object]) -> None:
    drafter = fakes.bound(**shape)
    features, tokens = texts(2, 6)
    predicted = drafter.unroll(features, tokens).hidden
    assert predicted.shape == (2, 6, drafter.levels, fakes.SIZE)
    for row in range(2):
        for end in range(1, 7):
            literal = reference.group(drafter, features[row, :end], tokens[row, :end])
            torch.testing.assert_close(predicted[row, end - 1], literal, **CLOSE)
    for end in range(1, 7):
        drafter.open(8, 64)
        drafter.commit(GivenSession(features, tokens).admit([end, end]))
        decoded = drafter.expand(GrowingTree(tokens[:, end - 1], fakes.VOCAB).frontier([0])).logits[:, 0]
        torch.testing.assert_close(decoded, drafter.logits(predicted[:, end - 1]), **SAME)


@pytest.mark.parametrize("shape", fakes.SHAPES)
def test_chunks_of_groups_are_the_dense_forward_of_the_figure(shape: dict[str, object]) -> None:
    drafter = fakes.bound(**shape)
    features, tokens = texts(2, 7)
    weights = dict(drafter.module.named_parameters())
    direction = torch.randn(2, 7, drafter.levels, fakes.SIZE, dtype=torch.float64)

    def gradients(predicted: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad((predicted * direction).sum(), list(weights.values())))

    dense = reference.figure(drafter, features, tokens)
    wanted = gradients(dense)
    pairs = torch.cat([fakes.target().embed(tokens), features], -1)
    widest: list[int] = []
    drafter.module.layer.register_forward_pre_hook(lambda _, inputs: widest.append(inputs[2].numel()))
    for chunk in (1, 3, 7, 64):
        widest.clear()
        predicted = drafter.module.hidden(drafter.module.groups(pairs, chunk))
        torch.testing.assert_close(predicted, dense, **SAME)
        for name, ours, theirs in zip(weights, gradients(predicted), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, msg=name)
        asked = min(chunk, 7) * (drafter.levels - 1)
        assert max(widest) <= max(7 * 7, asked * (7 + asked)), "no mask is wider than the text and a chunk"


@pytest.mark.parametrize(("first", "last"), [(0, 5), (2, 5), (4, 5)])
@pytest.mark.parametrize("masks", [1, 3])
def test_the_mask_is_the_papers(first: int, last: int, masks: int) -> None:
    members = [(group, number) for group in range(first, last) for number in range(masks)]
    keys = [(entry, None) for entry in range(last)] + members
    seen, where = visible(first, last, masks), places(first, last, masks)
    assert seen.shape == (len(members), len(keys))
    for row, (group, number) in enumerate(members):
        assert where[row] == group + number + 1
        for column, (owner, other) in enumerate(keys):
            ours = owner <= group if other is None else owner == group and other <= number
            assert seen[row, column] == ours


def test_a_group_sees_the_text_before_it_and_no_other_group() -> None:
    drafter = fakes.bound(masks=2)
    features, tokens = texts(1, 6)
    features.requires_grad_()
    predicted = drafter.unroll(features, tokens).hidden[0]
    for group in range(6):
        for member in range(3):
            (reach,) = torch.autograd.grad(predicted[group, member].sum(), features, retain_graph=True)
            assert (reach.abs().sum(-1) > 0)[0].tolist() == [seen <= group for seen in range(6)]
    alone = fakes.bound(masks=1)  # [MASK] 1 does not know whether there is a second
    weights = alone.module.state_dict()
    alone.module.load_state_dict(
        weights | {n: w[:1] if n == "masks" else w for n, w in drafter.module.state_dict().items()}
    )
    torch.testing.assert_close(alone.unroll(features, tokens).hidden[0], predicted[:, :2], **SAME)


@pytest.mark.parametrize("shape", fakes.SHAPES)
def test_gradients_reach_every_weight_of_the_module_and_nothing_else(shape: dict[str, object]) -> None:
    drafter = fakes.bound(**shape)
    assert isinstance(drafter, FeatureDrafter)
    target = fakes.target()
    teacher = random_teacher(target, 2, 10)
    torch.manual_seed(0)
    student = Groups(noise=0.1)(drafter, teacher, 0.0)
    (FeatureRegression()(student, teacher) + CrossEntropy()(student, teacher)).backward()
    for name, weight in drafter.module.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name
    assert set(dict(drafter.module.named_parameters())) == set(drafter.module.state_dict())
    assert drafter.module.masks.grad.abs().sum(-1).min() > 0
    assert all(weight.grad is None for weight in target.model.parameters())
    shared = {id(weight) for weight in target.model.parameters()}
    assert not shared & {id(weight) for weight in drafter.module.parameters()}


@torch.no_grad()
@pytest.mark.parametrize("decay", [1.0, 0.8])
def test_losses_are_the_papers_sums_over_groups(decay: float) -> None:
    drafter = fakes.bound(masks=2)
    batch, length, k = 2, 8, 3
    teacher = random_teacher(fakes.target(), batch, length)
    teacher.mask[:] = True
    student = Groups()(drafter, teacher, 0.0)
    medusa = eagle = 0.0  # Equations 3 and 4, the latter with EAGLE's weight of 0.1
    scored = counted = 0
    for row in range(batch):
        for t in range(length - 1):  # the pair (feature t, token t + 1)
            features = drafter.unroll(
                teacher.features["last"][row : row + 1, : t + 1], teacher.tokens[row : row + 1, 1 : t + 2]
            ).hidden
            for member, predicted in enumerate(features[0, -1]):
                place = t + 1 + member
                if place >= length:
                    continue
                eagle += torch.nn.functional.smooth_l1_loss(predicted, teacher.features["last"][row, place])
                scored += 1
                if place + 1 < length:
                    surprise = -drafter.logits(predicted).log_softmax(-1)[teacher.tokens[row, place + 1]]
                    medusa += decay**member * surprise
                    counted += 1
    mean = CrossEntropy(labels="text", decay=decay)(student, teacher)
    torch.testing.assert_close(mean * counted, medusa, **SAME)
    torch.testing.assert_close(FeatureRegression()(student, teacher) * scored, eagle, **SAME)
    assert counted == batch * sum(min(k, length - 2 - t) for t in range(length - 1))


@pytest.mark.parametrize(
    ("features", "losses"),
    [
        (True, [(FeatureRegression(), 1.0, "regression"), (CrossEntropy(labels="text"), 0.1, "cross-entropy")]),
        (False, [(CrossEntropy(labels="text", decay=0.8), 1.0, "cross-entropy")]),
    ],
    ids=["eagle", "medusa"],
)
def test_simulated_tau_is_what_decoding_has(features: bool, losses: list, tmp_path: Path) -> None:
    target, masks, prompt, new, held = TableTarget(vocab=24, hidden=32, seed=1), 3, 2, 60, 48
    drafter = ParallelSpec(masks=masks, features=features)
    drafter.bind(target)
    tokens = greedy_texts(target, 48 + held, prompt + new)
    torch.manual_seed(0)
    parts = [tokens[held + start :: 4] for start in range(4)]
    lessons = [target.teach(part, torch.ones_like(part, dtype=torch.bool)) for part in parts]
    course = fit(drafter, lessons, Groups(noise=0.1), [pair[:2] for pair in losses], steps=40)
    assert sum(course[-5:]) < 0.8 * sum(course[:5])
    drafter.save(tmp_path / "weights")

    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"specframe: 1\ntarget: {{use: table, vocab: 24, hidden: 32, seed: 1}}\n"
        f"drafter: {{use: parallelspec, masks: {masks}, features: {features}, weights: {tmp_path}/weights}}\n"
        f"tree: {{use: chain, depth: {masks + 1}}}\nverifier: match\n"
        f"sampling: {{temperature: 0.0, max_new_tokens: {new}}}\nrun: {{batch: {held}}}\n"
    )
    pipeline = specframe.load(recipe)
    texts = tokens[:held]
    teacher = target.teach(texts, torch.arange(texts.shape[1]).expand_as(texts) >= prompt)
    simulated = measure(pipeline.parts.drafter, [teacher], losses, Groups(noise=0.1))
    result = pipeline.generate(texts[:, :prompt].tolist())
    assert result.tokens == texts[:, prompt:].tolist()
    tau = 1 + result.acceptance.accepted / result.acceptance.cycles
    assert tau > 1.3, "nothing was learned, so nothing is compared"
    assert simulated["tau"] == pytest.approx(tau, rel=0.03)
