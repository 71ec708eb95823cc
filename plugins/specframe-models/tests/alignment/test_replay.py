"""Replayed drafts against decoding: the same roots, tokens and distributions, number by number."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import specframe
import specframe.plugin
from specframe.components.drafters.model import ModelDrafter
from specframe.components.heads import Trimmed
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.divergences import JensenShannon
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.components.rollouts.text import AlongText
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.fixed import Chain
from specframe.testing import shake, tiny_target
from specframe.training.online import Online
from specframe_blocks.dflash.d_pace import DPace
from specframe_eagle.drafter import Eagle
from specframe_eagle.eagle3 import Eagle3
from specframe_medusa.medusa import Medusa
from specframe_models.alignment.replay import Replay
from specframe_models.alignment.walk import choose, failed_roots

LEVELS, NEW = 3, 24
PROMPTS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10], [2, 2]]


def language_model() -> ModelDrafter:
    return ModelDrafter.from_model(random_model(vocab=11, layers=1, seed=4))


def bound(make, target):
    drafter = make()
    drafter.bind(target)
    if drafter.taps:
        shake(drafter.module, seed=2)
    return drafter


DRAFTERS = {
    "model": language_model,
    "eagle": Eagle,
    "eagle of a draft vocabulary": lambda: Eagle(head=Trimmed(keep=6)),
    "eagle3": Eagle3,
}


def decoded(drafter, target) -> tuple[Tensor, Tensor, list[dict[int, tuple[list[int], Tensor]]]]:
    """Greedy texts [B, L] with the mask of their answers, and each row's rejected cycles: root -> tokens, logits."""
    composed = specframe.compose(
        target=target,
        drafter=drafter,
        tree=Chain(depth=LEVELS),
        verifier="match",
        sampling={"temperature": 0.0, "max_new_tokens": NEW},
    )
    rejected: list[dict[int, tuple[list[int], Tensor]]] = []
    texts = []
    with composed.open_endless(1) as session:
        for request in composed.requests(PROMPTS):
            session.admit([request])
            text, failed = list(request.tokens), dict[int, tuple[list[int], Tensor]]()
            (entry,) = session.live
            root = len(text)
            while session.live:
                cycle = session.step()
                if int(cycle.verdict.length) < LEVELS:
                    failed[root] = cycle.draft.tokens[0, 1:].tolist(), cycle.scores.logits[0]
                root += int(cycle.verdict.count)
            texts.append(text + list(entry.tokens))
            rejected.append(failed)
    length = max(map(len, texts))
    tokens = torch.tensor([text + [0] * (length - len(text)) for text in texts])
    places = torch.arange(length)
    mask = torch.stack([(places >= len(p) - 1) & (places < len(t)) for p, t in zip(PROMPTS, texts, strict=True)])
    return tokens, mask, rejected


def taught(make, layers=6):
    """A target, a drafter bound to it, and the texts decoded with them, of which `decoded` records."""
    target = tiny_target(layers=layers)
    drafter = bound(make, target)
    return target, drafter, *decoded(drafter, target)


@pytest.mark.sampled
@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)
def test_a_replayed_draft_is_decodings_and_the_target_answers_as_in_verification(make) -> None:
    target, drafter, tokens, mask, rejected = taught(make)
    rollout = Replay(levels=LEVELS, roots=100)
    teacher = rollout.ask(target, drafter, tokens, mask)
    student = rollout(drafter, teacher, 0.0)
    length, drafts = tokens.shape[1], teacher.drafts
    count = drafts.roots.shape[1]
    assert student.level.tolist() == [level for level in range(1, LEVELS + 1) for _ in range(count)]
    compared = 0
    for row, failed in enumerate(rejected):
        # of the last cycles more was drafted than the text goes on
        inside = {root: found for root, found in failed.items() if root < int(mask[row].nonzero().max()) - LEVELS}
        there = {root: k for k, root in enumerate(drafts.roots[row].tolist()) if bool(student.mask[row, k])}
        assert {root for root in there if root in inside or root < max(inside)} == set(inside)
        for root, (drafted, logits) in inside.items():
            k = there[root]
            after = [length + level * count + k for level in range(LEVELS - 1)]
            assert teacher.tokens[row, after].tolist() == drafted[:-1]
            torch.testing.assert_close(teacher.logits[row, [root, *after]], logits[:LEVELS])
            assert student.argmax[row, k::count].tolist() == drafted
            assert student.position[row, k::count].tolist() == [root, *after]
            compared += 1
    assert compared > 10


@pytest.mark.sampled
@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)
def test_predictions_are_those_of_each_draft_by_itself(make) -> None:
    """A draft alone after its text gives the same numbers: nothing leaks from draft to draft, or from row to row."""
    target, drafter, tokens, mask, _ = taught(make)
    rollout = Replay(levels=LEVELS, roots=5)
    teacher = rollout.ask(target, drafter, tokens, mask)
    student = rollout(drafter, teacher, 0.0)
    drafts, length = teacher.drafts, tokens.shape[1]
    count = drafts.roots.shape[1]
    for row in range(len(tokens)):
        for k in range(count):
            root = int(drafts.roots[row, k])
            after = [length + level * count + k for level in range(LEVELS - 1)]
            text = torch.cat([tokens[row, : root + 1], teacher.tokens[row, after]])[None]
            alone = target.teach(text, torch.ones_like(text, dtype=torch.bool))
            torch.testing.assert_close(alone.logits[0, root:], teacher.logits[row, [root, *after]])
            if not drafter.taps:
                wanted = drafter.read_text(text)[0, root:]
                torch.testing.assert_close(student.logits[row, k::count], wanted)
                continue
            single = replace(
                teacher.__class__(alone.tokens, alone.mask, alone.features, alone.logits),
                drafts=specframe.plugin.Drafts(root + 1, torch.tensor([[root]]), LEVELS - 1),
                fed=teacher.fed[row, k::count][None],
            )
            made = rollout(drafter, single, 0.0)
            torch.testing.assert_close(made.logits[0], student.logits[row, k::count])


def test_cycles_against_a_walk_written_out() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(3, (6, 40))
    mask = torch.rand(6, 40) < 0.9
    choices = torch.randint(3, (6, 40, LEVELS))
    found = failed_roots(choices, tokens, mask)
    for row in range(6):

        def counts(place: int, row: int = row) -> bool:
            return place + 1 < 40 and bool(mask[row, place]) and bool(mask[row, place + 1])

        wanted, root = [], 1
        while root < 40:
            if not (counts(root) and mask[row, root - 1]):
                root += 1
                continue
            level = 0
            while level < LEVELS and counts(root + level):
                if choices[row, root, level] != tokens[row, root + level + 1]:
                    wanted.append(root)
                    break
                level += 1
            root += level + 1
        assert found[row].nonzero()[:, 0].tolist() == wanted
    assert found.sum() > 20


def test_roots_are_chosen_at_random() -> None:
    roots = torch.zeros(2, 30, dtype=torch.bool)
    roots[0, 5:15] = True
    seen = set()
    for seed in range(30):
        torch.manual_seed(seed)
        places, there = choose(roots, 3)
        assert places.shape == (2, 3) and there.tolist() == [[True] * 3, [False] * 3]
        assert len(set(places[0].tolist())) == 3 and places[1].tolist() == [1, 1, 1]
        seen |= set(places[0].tolist())
    assert seen == set(range(5, 15))
    places, there = choose(torch.zeros(1, 4, dtype=torch.bool), 3)
    assert places.tolist() == [[1]] and not there.any()


def test_what_follows_a_drafted_end_does_not_count(monkeypatch) -> None:
    target, drafter, tokens, mask, _ = taught(language_model, layers=2)
    even = frozenset(range(0, 11, 2))
    monkeypatch.setattr(type(target), "ends", even)  # so that many drafted tokens are ends
    teacher = Replay(levels=LEVELS, roots=9).ask(target, drafter, tokens, mask)
    student = Replay(levels=LEVELS)(drafter, teacher, 0.0)
    count, length = teacher.drafts.roots.shape[1], tokens.shape[1]
    off = 0
    for row in range(len(tokens)):
        for k in range(count):
            ended = not bool(student.mask[row, k])
            for level in range(1, LEVELS):
                ended |= int(teacher.tokens[row, length + (level - 1) * count + k]) % 2 == 0
                assert bool(student.mask[row, level * count + k]) is not ended
                off += ended
    assert off


def test_sampled_drafts_follow_the_drafter() -> None:
    target, drafter, tokens, mask, _ = taught(language_model, layers=2)
    found = []
    for seed in range(40):
        torch.manual_seed(seed)
        teacher = Replay(levels=2, roots=8, temperature=2.0).ask(target, drafter, tokens, mask)
        length, count = tokens.shape[1], teacher.drafts.roots.shape[1]
        with torch.no_grad():
            law = (drafter.read_text(tokens) / 2.0).softmax(-1)
        rows = torch.arange(len(tokens))[:, None]
        drawn, law = teacher.tokens[:, length : length + count], law[rows, teacher.drafts.roots]
        there = teacher.mask.gather(1, teacher.drafts.roots)
        found.append((law[there], drawn[there]))
    laws, drawn = (torch.cat(parts) for parts in zip(*found, strict=True))
    score = laws.gather(1, drawn[:, None])[:, 0]
    assert len(drawn) > 500
    assert float(score.mean()) == pytest.approx(float(laws.square().sum(1).mean()), abs=0.03)


@pytest.mark.parametrize("make", [language_model, Eagle, Eagle3])
def test_a_teacher_of_texts_is_read_along(make) -> None:
    """As validation has it."""
    target, drafter, tokens, mask, _ = taught(make)
    teacher = target.teach(tokens, mask)
    student = Replay()(drafter, teacher, 0.0)
    other = (AlongText() if not drafter.taps else TeacherForced(noise=0.0))(drafter, teacher, 0.0)
    assert torch.equal(student.position, other.position) and torch.equal(student.mask, other.mask)
    torch.testing.assert_close(student.logits, other.logits)


@pytest.mark.sampled
@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)
def test_gradients_reach_the_drafter_alone_and_help(make) -> None:
    target, drafter, tokens, mask, _ = taught(make)
    rollout, loss = Replay(levels=LEVELS), JensenShannon()
    torch.manual_seed(0)
    teacher = rollout.ask(target, drafter, tokens, mask)
    weights = [weight for weight in drafter.module.parameters() if weight.requires_grad]
    before = loss(rollout(drafter, teacher, 0.0), teacher)
    slopes = torch.autograd.grad(before, weights, allow_unused=True, materialize_grads=True)
    length = torch.cat([slope.flatten() for slope in slopes]).norm()
    assert 0 < length < torch.inf
    with torch.no_grad():
        for weight, slope in zip(weights, slopes, strict=True):
            weight -= 1e-3 * slope / length
    assert loss(rollout(drafter, teacher, 0.0), teacher) < before
    assert all(weight.grad is None for weight in target.model.parameters())


def test_drafting_drops_nothing_out_and_puts_training_back() -> None:
    target, drafter, tokens, mask, _ = taught(language_model, layers=2)
    drafter.module.train()
    Replay().ask(target, drafter, tokens, mask)
    assert drafter.module.training


def test_refusals() -> None:
    target, drafter, tokens, mask, _ = taught(language_model)
    for options, message in (
        ({"levels": 0}, "levels must be at least 1"),
        ({"roots": 0}, "roots must be at least 1"),
        ({"temperature": -1.0}, "temperature must not be negative"),
    ):
        with pytest.raises(specframe.InputError, match=message):
            Replay(**options)
    medusa = bound(lambda: Medusa(heads=2), target)
    with pytest.raises(specframe.CompositionError, match="such as `model` and `eagle`; Medusa is neither"):
        Replay().ask(target, medusa, tokens, mask)
    with pytest.raises(specframe.CompositionError, match="a table target teaches texts alone"):
        Replay().ask(TableTarget(vocab=11), drafter, tokens, mask)
    teacher = Replay().ask(target, drafter, tokens, mask)
    student = Replay()(drafter, teacher, 0.0)
    for loss in (CrossEntropy(labels="text"), DPace(loss=CrossEntropy())):
        with pytest.raises(specframe.CompositionError, match="reads on along a text"):
            loss(student, teacher)
    with pytest.raises(specframe.CompositionError, match="texts that the target has not read"):
        Online(drafter=language_model(), rollout=Replay())
