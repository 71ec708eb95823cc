"""DSpark: every node's distribution is that of the literal forward pass, in decoding and in training."""

from __future__ import annotations

import dflash_reference as reference
import dflash_texts as texts
import pytest
import torch
from torch import Tensor

from specframe import CompositionError, InputError
from specframe.components.heads import Trimmed
from specframe.components.losses.cross_entropy import CrossEntropy
from specframe.testing import GivenSession, GrowingTree, check_drafter, check_proposals, random_teacher
from specframe_blocks.dflash.dspark import DSpark
from specframe_blocks.dflash.rollout import AnchoredBlocks
from specframe_models.specdecpp.head import AcceptanceHead
from specframe_models.specdecpp.loss import AcceptanceLoss

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.mark.sampled
@pytest.mark.parametrize("options", texts.SPARKS)
def test_proposals_are_the_literal_forward_pass_s(options: dict[str, object]) -> None:
    drafter = texts.dspark(**options)

    def wanted(session: GivenSession, row: int, path: Tensor) -> Tensor:
        root = session.root[row]
        states = reference.block(drafter, texts.taps(drafter, session, row), root)
        return reference.below(drafter, states, torch.cat([root[None], path]))[0][None]

    check_proposals(
        drafter, lambda rows: texts.session(drafter, rows), wanted, expansions=drafter.promise.depth - 1, close=1e-5
    )


@torch.no_grad()
@pytest.mark.parametrize("options", texts.SPARKS)
def test_training_predicts_what_decoding_does_with_the_text_s_tokens_above(options: dict[str, object]) -> None:
    drafter = texts.dspark(**options)
    teacher = random_teacher(drafter.target, 2, 9)
    student = AnchoredBlocks()(drafter, teacher, 0.0)
    features = torch.cat([teacher.features[tap] for tap in drafter.spec.taps], -1)
    levels, compared = drafter.promise.depth, 0
    for row in range(2):
        for place, wanted in enumerate(student.mask[row].tolist()):
            if not wanted:
                continue
            level = int(student.level[place])
            entry = int(student.position[row, place]) - level
            states = reference.block(drafter, features[row, : entry + 1], teacher.tokens[row, entry + 1])
            path = teacher.tokens[row, entry + 1 : entry + 1 + level]
            logits, confidence = reference.below(drafter, states, path)
            torch.testing.assert_close(student.logits[row, place], logits, **CLOSE)
            if confidence is not None:
                torch.testing.assert_close(student.confidence[row, place], confidence, **CLOSE)
            compared += 1
    assert compared == int(student.mask.sum()) > 3 * levels
    assert (student.confidence is None) == (drafter.network.confidence_head is None)


@torch.no_grad()
def test_the_backbone_runs_once_a_draft() -> None:
    drafter = texts.dspark()
    session = texts.session(drafter, 2)
    runs: list[int] = []
    drafter.network.layers[0].mlp.register_forward_hook(lambda module, given, out: runs.append(1))
    drafter.open(2, 64)
    drafter.commit(session.admit([4, 2]))
    tree = GrowingTree(session.root, texts.VOCAB)
    drafter.expand(tree.frontier([0]))
    nodes = [tree.add(0), tree.add(0)]
    proposal = drafter.expand(tree.frontier(nodes))
    drafter.expand(tree.frontier([tree.add(nodes[0])]))
    assert len(runs) == 1
    assert proposal.logits.shape == (2, 2, 1, texts.VOCAB) and proposal.confidence.shape == (2, 2, 1)
    assert not torch.allclose(proposal.logits[:, 0], proposal.logits[:, 1]), "siblings have laws of their own"


@pytest.mark.parametrize("options", texts.SPARKS)
def test_gradients_reach_every_weight(options: dict[str, object]) -> None:
    drafter = texts.dspark(torch.float32, **options)
    teacher = random_teacher(drafter.target, 3, 20)
    student = AnchoredBlocks()(drafter, teacher, 0.0)
    loss = CrossEntropy()(student, teacher)
    if student.confidence is not None:
        loss = loss + AcceptanceLoss(draw=1, temperature=1.0, rejection=1.0)(student, teacher)
    loss.backward()
    for name, weight in drafter.module.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name


@torch.no_grad()
def test_biases_are_of_the_head_s_tokens() -> None:
    drafter = texts.dspark(head=Trimmed(keep=6))
    session = texts.session(drafter, 1)
    drafter.open(1, 64)
    drafter.commit(session.admit([4]))
    proposal = drafter.expand(GrowingTree(session.root, texts.VOCAB).frontier([0]))
    assert proposal.logits.shape[-1] == 6 and proposal.support.tolist() == list(range(6))
    assert drafter.network.markov_head.markov_w2.weight.shape == (6, 3)
    states = reference.block(drafter, texts.taps(drafter, session, 0), session.root[0])
    before = drafter.network.markov_head.markov_w1.weight[session.root[0]]
    wanted = drafter.target.head(states[0])[:6] + drafter.network.markov_head.markov_w2.weight @ before
    torch.testing.assert_close(proposal.logits[0, 0, 0], wanted, **CLOSE)


def test_a_tree_deeper_than_a_block_is_refused() -> None:
    drafter = texts.dspark()
    session = texts.session(drafter, 1)
    drafter.open(1, 64)
    drafter.commit(session.admit([4]))
    tree, node = GrowingTree(session.root, texts.VOCAB), 0
    for _ in range(4):
        drafter.expand(tree.frontier([node]))
        node = tree.add(node)
    with pytest.raises(CompositionError, match="make the tree at most 4 deep"):
        drafter.expand(tree.frontier([node]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"markov": "third"}, "markov is one of vanilla, gated, rnn"),
        ({"rank": 0}, "rank must be at least 1"),
        ({"block_size": 0}, "block_size must be at least 1"),
    ],
)
def test_options_that_make_no_drafter_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DSpark(**options)


def test_a_head_that_is_trained_by_itself_is_refused() -> None:
    with pytest.raises(CompositionError, match="has no place for the bias"):
        DSpark(head=AcceptanceHead())


@pytest.mark.sampled
@pytest.mark.parametrize("options", texts.SPARKS)
def test_it_keeps_the_contract_of_drafters(options: dict[str, object]) -> None:
    check_drafter(lambda: DSpark(**{**options, "block_size": 3, "layers": 1, "rank": 2}))
