"""Verdicts, commits and greedy scores are dataclasses: replacing, pickling and packing keep what they hold."""

import pickle
from dataclasses import replace

import pytest
import torch

from specframe.kernel.types import Committed, GreedyScores, HostVerdict, Prompts, TokenTree, Verdict

ROOT = torch.tensor([5, 6])
TREE = TokenTree.of_rows(ROOT, [[5, 1, 2, 3], [6, 4, 7]], [[-1, 0, 1, 0], [-1, 0, 0]], levels=2)
PACKED = [[0, 1, 2, 1, 2, 8, 2, 3, 8], [0, 2, -1, 7, 9, 0, 1, 2, 9]]
HOST = HostVerdict([[1, 2], [2]], [[1, 2, 8], [7, 9]])


def by_fields() -> Verdict:
    return Verdict(torch.tensor([[1, 2], [2, -1]]), torch.tensor([2, 1]), torch.tensor([8, 9]))


VERDICTS = {
    "fields": by_fields,
    "packed": lambda: Verdict.unpack(torch.tensor(PACKED)),
    "host": lambda: Verdict.of(HOST, TREE),
    "pickled": lambda: pickle.loads(pickle.dumps(Verdict.of(HOST, TREE))),
}


@pytest.mark.parametrize("make", VERDICTS.values(), ids=VERDICTS)
def test_a_verdict_is_the_same_however_it_was_made(make):
    verdict = make()
    assert verdict.slots.tolist() == [[0, 1, 2], [0, 2, -1]] and verdict.count.tolist() == [3, 2]
    assert verdict.to_host(TREE) == HOST and verdict.packed(TREE).tolist() == PACKED
    assert verdict.emitted(TREE).tolist() == [[1, 2, 8], [7, 9, 0]]
    assert verdict.slots.tolist() == [[0, 1, 2], [0, 2, -1]] and verdict.count.tolist() == [3, 2]
    assert repr(verdict) == repr(by_fields())


@pytest.mark.parametrize("make", VERDICTS.values(), ids=VERDICTS)
def test_a_replaced_verdict_packs_its_own_fields(make):
    changed = replace(make(), bonus=torch.tensor([3, 3]))
    assert changed.to_host(TREE).tokens == [[1, 2, 3], [7, 3]]
    assert changed.emitted(TREE).tolist() == [[1, 2, 3], [7, 3, 0]]


def test_the_fields_of_a_packed_verdict_are_views():
    packed = torch.tensor(PACKED)
    verdict = Verdict.unpack(packed)
    packed[0, 1], packed[1, -1] = 3, 4
    assert verdict.path.tolist() == [[3, 2], [2, -1]] and verdict.bonus.tolist() == [8, 4]


@pytest.mark.parametrize("make", VERDICTS.values(), ids=VERDICTS)
def test_a_commit_has_the_tokens_of_its_verdict(make):
    committed = Committed.of(make(), TREE, {"last": torch.zeros(2, 3, 1)})
    for one in (committed, pickle.loads(pickle.dumps(committed)), replace(committed)):
        assert one.tokens.tolist() == [[1, 2, 8], [7, 9, 0]] and one.root.tolist() == [8, 9]
        assert one.counts == one.count.tolist() == [3, 2] and one.texts == HOST.tokens
    fewer = replace(committed, count=torch.tensor([1, 1]))
    assert fewer.counts == [1, 1] and fewer.texts == [[1], [7]]


def test_a_commit_of_prompts_is_read_on_the_host():
    tokens, count = torch.tensor([[4, 5, 6], [7, 8, 0]]), torch.tensor([3, 2])
    committed = Committed(tokens, count, {}, torch.tensor([6, 8]), Prompts(tokens, count))
    assert committed.texts == [[4, 5, 6], [7, 8]] and committed.counts == [3, 2]


def test_greedy_scores_compute_their_logits_once():
    logits, calls = torch.rand(1, 2, 3), []
    scores = GreedyScores(logits.argmax(-1), {}, lambda: calls.append(1) or logits)
    assert not scores.has_logits
    assert torch.equal(scores.logits, logits) and scores.logits is scores.logits and scores.has_logits
    assert len(calls) == 1
    changed = replace(scores, features={"last": logits})
    assert changed.best is scores.best and not changed.has_logits and torch.equal(changed.logits, logits)
