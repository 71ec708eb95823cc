"""FLASH's drafter: an image as a few entries at positions of their own, and several levels from one entry."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe import CompositionError, InputError
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.feature_regression import FeatureRegression
from specframe.components.rollouts.multi_step import MultiStep
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.components.targets.hf import HFTarget
from specframe.components.trees.fixed import Chain, Fixed
from specframe.components.verifiers.match import Match
from specframe.decoding.requests import Request
from specframe.decoding.session import Parts, Session
from specframe.neural import PendingCommit
from specframe.plugin import Committed, Context, Expand, Frontier, Proposal, TokenTree
from specframe.testing import GivenSession, check_drafter, check_proposals, fit, random_teacher, shake, tiny_target
from specframe_images.entries import laid_out
from specframe_images.flash import Flash, FlashSession
from tests.components.targets.images import IMAGE, generated, prompt, seeing, text

CLOSE = 1e-5
"""Weights are float64, but norms and rotary angles are float32 in transformers."""


@pytest.fixture(scope="module")
def target() -> HFTarget:
    with pytest.MonkeyPatch.context() as patch:
        return HFTarget.from_model(seeing("llava", patch))


def bound(target: HFTarget, levels: int = 2, entries: int = 3) -> Flash:
    drafter = Flash(entries=entries, levels=levels)
    drafter.bind(target)
    shake(drafter.module)
    return drafter


def teach(target: HFTarget, tokens: list[int], request: Request) -> Any:
    row = torch.tensor([tokens])
    return target.teach(row, torch.ones_like(row, dtype=torch.bool), inputs=request.inputs)


def entered(drafter: Flash, teacher: Any) -> tuple[Tensor, Tensor]:
    """The layer's inputs along a text, and their positions."""
    calls: list[Any] = []
    handle = drafter.network.layer.register_forward_pre_hook(lambda module, given: calls.append(given))
    TeacherForced(noise=0.0)(drafter, teacher, 0.0)
    handle.remove()
    return calls[0][0][0], calls[0][1][0]


def test_an_image_is_compressed_to_mixtures_of_its_features(target: HFTarget) -> None:
    drafter = bound(target)
    request = prompt(target.model, 1, before=2, after=4)
    teacher = teach(target, list(request.tokens), request)
    inputs, positions = entered(drafter, teacher)
    features = teacher.features["last"][0, :-1]
    following = teacher.tokens[0, 1:]
    parts = features[following == IMAGE]  # [16, H]
    weights = (drafter.network.queries @ parts.T).softmax(-1)
    texts = drafter.network.fc(torch.cat([target.embed(following), features], -1))[following != IMAGE]
    assert (following == IMAGE).tolist() == [False] + [True] * 16 + [False] * 4
    assert positions.tolist() == [0, 5, 10, 16, 17, 18, 19, 20]
    assert torch.allclose(inputs[1:4], weights @ parts)
    assert torch.allclose(inputs[[0, 4, 5, 6, 7]], texts)


def test_each_run_is_laid_out_by_itself() -> None:
    flags = [[False, True, True, True, True, False, True, False], [True, True, False, False, False, True, True, True]]
    layout = laid_out(flags, [8, 4], 2)
    assert layout.runs == [(0, 1, 5), (0, 6, 7), (1, 0, 2)]
    assert layout.counts == [6, 4]
    assert layout.positions.tolist() == [[0, 2, 4, 5, 6, 7], [0, 1, 2, 3, 0, 0]]
    assert layout.sources.tolist() == [[0, 16, 17, 5, 18, 7], [20, 21, 10, 11, 0, 0]]
    assert layout.places.tolist() == [[0, 2, 2, 2, 2, 3, 4, 5], [1, 1, 2, 3, 0, 0, 0, 0]]


class Asked(Chain):
    """A chain that keeps the logits and tokens of every draft."""

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        self.logits: list[Tensor] = []

        def ask(frontier: Frontier) -> Proposal:
            proposal = expand(frontier)
            self.logits.append(proposal.logits[:, 0])  # [B, K, V]
            return proposal

        tree = super().grow(ask, root, context)
        self.drafted = tree.tokens[:, 1:]
        return tree


@torch.no_grad()
def learnt(drafter: Flash, features: Tensor, tokens: Tensor, drafted: Tensor) -> list[Tensor]:
    """The logits [K, V] of every pass of a draft after a text, as training computes them along what it reads."""
    found, k = [], drafter.levels
    for level in range(0, len(drafted), k):
        later = torch.cat([tokens, drafted[:level]])[None]
        predicted = drafter.unroll(features[None], torch.nn.functional.pad(later, (0, k - 1)))
        found.append(drafter.read(predicted)[0, -1])
        assert predicted.features is not None
        features = torch.cat([features, predicted.features[0, -1]])
    return found


def differences(target: HFTarget, drafter: Flash, cycles: int = 4) -> list[float]:
    """The distance of drafts from what training computes: rows with an image and without, of which one leaves."""
    tree = Asked(depth=4)
    requests = [prompt(target.model, 1, after=3), text(9, 8, 7, 6, 5), prompt(target.model, 2, before=3, after=5)]
    session = Session(Parts(target, drafter, tree, Match()), 3, 64)
    session.admit([Request(tokens=each.tokens, inputs=each.inputs, max_new_tokens=n, number=n)
                   for n, each in zip((30, 2, 31), requests, strict=True)])  # fmt: skip
    found = []
    for _ in range(cycles):
        written = [[*entry.request.tokens, *entry.tokens] for entry in session.live]
        given = [entry.request for entry in session.live]
        session.step()
        for row, (tokens, request) in enumerate(zip(written, given, strict=True)):
            teacher = teach(target, tokens, request)
            pairs = teacher.features["last"][0, :-1], teacher.tokens[0, 1:]
            wanted = learnt(drafter, *pairs, tree.drafted[row])
            found += [float((made[row] - one).abs().max()) for made, one in zip(tree.logits, wanted, strict=True)]
    assert len(session.live) == 2  # one row has left
    return found


@pytest.mark.parametrize("levels", [1, 2, 4])
def test_what_it_learns_after_an_image_is_what_it_drafts_by(target: HFTarget, levels: int) -> None:
    assert max(differences(target, bound(target, levels))) < CLOSE


def test_positions_that_count_entries_are_found(target: HFTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = FlashSession.pending_commit

    def miscounted(session: FlashSession, rows: range, committed: Committed) -> PendingCommit:
        pending = honest(session, rows, committed)
        assert pending.entries is not None
        values, positions = pending.entries
        starts = session.counts if committed.prompt is None else [0] * len(pending.fresh)
        return replace(pending, entries=(values, torch.tensor(starts)[:, None] + torch.arange(positions.shape[1])))

    monkeypatch.setattr(FlashSession, "pending_commit", miscounted)
    assert max(differences(target, bound(target), cycles=2)) > 100 * CLOSE


def test_the_drafts_first_token_is_what_training_scores(target: HFTarget) -> None:
    drafter, request = bound(target, levels=3), prompt(target.model, 1, after=4)
    teacher = teach(target, list(request.tokens), request)
    student = TeacherForced(noise=0.0)(drafter, teacher, 0.0)
    n = len(request.tokens) - 1
    assert student.logits.shape[1] == 3 * n
    assert student.level.tolist() == [1, 2, 3] * n
    assert student.position[0, -6:].tolist() == [n - 1, n, n, n, n, n]
    assert student.mask[0, -6:].tolist() == [True, True, False, True, False, False]
    features = teacher.features["last"][0, :-1]
    wanted = learnt(drafter, features, teacher.tokens[0, 1:], torch.zeros(3, dtype=torch.int64))[0]
    assert torch.allclose(student.logits[0, -3:], wanted)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_after_texts_proposals_are_the_literal_forwards(levels: int) -> None:
    blind = tiny_target(vocab=11, size=8, dtype=torch.float64)
    drafter = bound(blind, levels)

    def wanted(session: GivenSession, row: int, path: Tensor) -> Tensor:
        return learnt(drafter, session.features[row], session.tokens[row], torch.cat([path, path.new_zeros(levels)]))[
            len(path) // levels
        ]

    check_proposals(drafter, partial(GivenSession.random, vocab=11, size=8, seed=0, dtype=torch.float64), wanted)


def test_texts_after_images_are_generates(target: HFTarget) -> None:
    requests = [prompt(target.model, seed, before=seed) for seed in (1, 2, 3)]
    tree = Fixed(paths=["0", "1", "0.0", "0.1", "0.0.0"])
    session = Session(Parts(target, bound(target), tree, Match()), 2, 64)
    rows = session.admit(requests[:2])
    session.step()
    while any(row.ended is None for row in rows) or len(rows) < 3:
        session.step()
        if len(rows) < 3 and session.free:
            rows += session.admit(requests[2:])
    assert [row.tokens for row in rows] == [generated(target.model, request)[0] for request in requests]


@pytest.mark.parametrize("levels", [1, 2])
def test_it_keeps_the_contract_of_drafters(levels: int) -> None:
    check_drafter(partial(Flash, entries=2, levels=levels))


def test_it_learns(target: HFTarget) -> None:
    drafter, request = bound(target), prompt(target.model, 1, after=8)
    teacher = teach(target, list(request.tokens), request)
    parts = [(FeatureRegression(), 1.0), (CrossEntropy(), 0.1)]
    losses = fit(drafter, [teacher], TeacherForced(noise=0.1), parts, steps=60)
    assert losses[-1] < losses[0] / 2
    assert drafter.network.queries.grad is not None


def test_what_does_not_fit_is_refused(target: HFTarget) -> None:
    with pytest.raises(InputError, match="flash: levels must be at least 1, got 0"):
        Flash(levels=0)
    with pytest.raises(CompositionError, match="multi-step"):
        MultiStep(steps=2)(bound(target), random_teacher(target, 1, 6), 0.0)
