"""Training: aligned pairs, gradients, steps that equal decoding, and a simulated tau that is the measured one."""

from __future__ import annotations

from dataclasses import dataclass, field

import eagle_texts as texts
import pytest
import torch
from torch import Tensor

from specframe import Sampling
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.components.losses.distillation import TopKDistillation
from specframe.components.losses.feature_regression import FeatureRegression
from specframe.components.rollouts.multi_step import MultiStep
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.components.targets.table import TableTarget
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.match import Match
from specframe.decoding.requests import Request
from specframe.decoding.session import Parts, Session
from specframe.decoding.stats import Acceptance
from specframe.plugin import Context, Expand, FeatureDrafter, Frontier, Proposal, SeededRandom, Teacher, TokenTree
from specframe.testing import GivenSession, GrowingTree, check_training, fit, greedy_texts, random_teacher
from specframe_eagle.drafter import Eagle

LOSSES = [
    (FeatureRegression(), 1.0, "regression"),
    (CrossEntropy(), 0.1, "cross-entropy"),
    (TopKDistillation(k=3), 1.0, "top_k"),
]


def test_it_is_a_feature_drafter_that_reads_the_last_feature() -> None:
    assert isinstance(Eagle(), FeatureDrafter)
    assert Eagle().taps == {"last"}


def test_a_position_sees_itself_and_what_is_before_and_pairs_are_aligned() -> None:
    drafter = texts.bound(dtype=torch.float32)
    teacher = random_teacher(texts.target(dtype=torch.float32), 1, 8)
    asked: list[tuple[Tensor, Tensor]] = []
    plain = drafter.unroll
    drafter.unroll = lambda f, t, places: asked.append((f.requires_grad_(), t)) or plain(f, t, places)
    student = TeacherForced(noise=0.0)(drafter, teacher, 0.0)
    ((features, tokens),) = asked
    assert torch.equal(features, teacher.features["last"][:, :-1])
    assert torch.equal(tokens, teacher.tokens[:, 1:])
    assert student.position[0].tolist() == list(range(1, 8)) and set(student.level.tolist()) == {1}
    for place in range(7):
        (reach,) = torch.autograd.grad(student.features[0, place].sum(), features, retain_graph=True)
        assert (reach.abs().sum(-1) > 0)[0].tolist() == [seen <= place for seen in range(7)]


@pytest.mark.parametrize("options", [{}, {"layers": 2}, texts.FSPAD, texts.DOVETAIL])
@pytest.mark.parametrize("rollout", [TeacherForced(), MultiStep(steps=3)])
def test_gradients_reach_every_weight_of_the_module_and_nothing_else(rollout: object, options: dict[str, bool]) -> None:
    drafter, target = texts.bound(dtype=torch.float32, **options), texts.target(dtype=torch.float32)
    teacher = random_teacher(target, 2, 10)
    student = rollout(drafter, teacher, 0.0)
    sum(weight * loss(student, teacher) for loss, weight, _ in LOSSES).backward()
    for name, weight in drafter.module.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name
    assert all(weight.grad is None for weight in target.model.parameters())
    shared = {id(weight) for weight in target.model.parameters()}
    assert not shared & {id(weight) for weight in drafter.module.parameters()}


@dataclass
class Given:
    """A tree policy that follows given tokens [B, n] and remembers what was proposed on the way."""

    tokens: Tensor
    captured: list[Tensor] = field(default_factory=list)

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        tree = GrowingTree(root, texts.VOCAB)
        proposal: Proposal = expand(tree.frontier([0]))
        self.captured.append(proposal.logits[:, 0, 0])
        for token in self.tokens.T:
            node = tree.add(len(tree.parents) - 1, token)
            frontier: Frontier = tree.frontier([node])
            self.captured.append(expand(frontier).logits[:, 0, 0])
        return tree.tree


@pytest.mark.parametrize(
    ("kind", "options"),
    [("llama", {}), ("qwen3", {}), ("llama", {"layers": 2}), ("llama", texts.FSPAD), ("qwen3", texts.DOVETAIL)],
)
def test_a_step_predicts_what_decoding_does_at_that_depth(kind: str, options: dict[str, bool]) -> None:
    steps, batch, length = 4, 3, 12
    drafter, teacher = texts.bound(kind, **options), random_teacher(texts.target(kind), batch, length)
    with torch.no_grad():
        student = MultiStep(steps=steps, noise=0.0)(drafter, teacher, 0.0)
    n = length - 1
    logits = student.logits.view(batch, steps, n, -1)
    scored = student.mask.view(batch, steps, n)
    compared = torch.zeros(batch, steps, n, dtype=torch.bool)
    for root in range(n):  # the root's pair is the root-th, and the root token root + 1
        rows = GivenSession.of(teacher)
        drafter.open(8, 64)
        drafter.commit(rows.admit([root + 1] * batch))
        depth = min(steps, n - root) - 1
        policy = Given(teacher.tokens[:, root + 2 : root + 2 + depth])
        drafter.propose(rows.root, policy, Context(Sampling(), SeededRandom(0, batch).draft))
        for level, captured in enumerate(policy.captured):
            torch.testing.assert_close(logits[:, level, root + level], captured, rtol=1e-6, atol=1e-6)
            compared[:, level, root + level] = True
    assert compared[scored].all() and scored.any(dim=2).all(), "every scored prediction was decoded, too"


def walked(drafter: Eagle, teacher: Teacher, prompt: int, new: int, depth: int) -> tuple[int, int]:
    """Cycles and accepted tokens of greedy decoding with a chain, read off one multi-step rollout."""
    with torch.no_grad():
        student = MultiStep(steps=depth, noise=0.0)(drafter, teacher, 1.0)
    batch, n = len(teacher.tokens), teacher.tokens.shape[1] - 1
    right = student.logits.argmax(-1) == teacher.logits.argmax(-1).gather(1, student.position)
    right = right.view(batch, depth, n)
    cycles = accepted = 0
    for row in range(batch):
        root, have = prompt - 1, 1  # the pair of the first new token
        while have < new:
            length = 0
            while length < depth and right[row, length, root + length]:
                length += 1
            root, have = root + length + 1, have + length + 1
            cycles, accepted = cycles + 1, accepted + length
    return cycles, accepted


def test_two_layers_train_by_hass() -> None:
    losses = "[{use: feature-regression, weight: 1.0}, {use: top-k-distillation, weight: 1.0}]"
    check_training("{use: eagle, layers: 2}", losses, rollout="multi-step", steps=40)


def test_a_trained_drafter_decodes_with_the_tau_of_its_rollout() -> None:
    target, depth, prompt, new = TableTarget(vocab=12, hidden=32, seed=1), 5, 2, 24
    drafter = Eagle()
    drafter.bind(target)
    tokens = greedy_texts(target, 32, prompt + new + 2 * depth)
    teacher = target.teach(tokens, torch.ones_like(tokens, dtype=torch.bool))
    torch.manual_seed(0)
    parts = [tokens[start::4] for start in range(4)]
    lessons = [target.teach(part, torch.ones_like(part, dtype=torch.bool)) for part in parts]
    losses = fit(drafter, lessons, MultiStep(steps=3, noise=0.05), [pair[:2] for pair in LOSSES], steps=60)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])

    prompts = tokens[:, :prompt].tolist()
    acceptance = Acceptance()
    session = Session(Parts(target, drafter, Chain(depth=depth), Match()), len(prompts), prompt + new + depth + 1)
    requests = [Request(tokens=row, max_new_tokens=new) for row in prompts]
    entries = session.run(requests, acceptance.add)
    acceptance.settle()
    assert [entry.tokens for entry in entries] == tokens[:, prompt : prompt + new].tolist()
    assert (acceptance.cycles, acceptance.accepted) == walked(drafter, teacher, prompt, new, depth)
    assert acceptance.tau > 1.5 and acceptance.alpha[3] > 0, "there is something to compare"
