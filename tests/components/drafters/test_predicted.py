"""Predicted continuations: copying drafters draft from them, and no text depends on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from specframe import Request, Sampling, Session
from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.suffix import Suffix
from specframe.components.drafters.suffix_recycling import SuffixRecycling
from specframe.components.verifiers.match import Match
from specframe.decoding.session import Parts
from specframe.plugin import Drafter
from specframe.testing import tiny_target
from tests.components.sessions import CONTEXT, first, later

VOCAB = 40
PROMPTS = [[1, 2, 3], [4, 5, 6, 7], [30]]
DRAFTERS: list[type[Suffix | Lookup | SuffixRecycling]] = [Suffix, Lookup, SuffixRecycling]


def decoded(
    drafter: Drafter, predicted: Sequence[Sequence[int]], temperature: float, slots: int = 2
) -> tuple[list[list[int]], int]:
    """The texts of the prompts, and the cycles that they took."""
    parts = Parts(tiny_target(vocab=VOCAB, dtype=torch.float64), drafter, None, Match())
    cycles = list[int]()
    requests = [
        Request(
            tokens=prompt,
            sampling=Sampling(temperature=temperature),
            seed=row,
            max_new_tokens=24,
            number=row,
            predicted=own,
        )
        for row, (prompt, own) in enumerate(zip(PROMPTS, predicted, strict=True))
    ]
    entries = Session(parts, slots, 99).run(requests, lambda cycle: cycles.append(len(cycle.committed.count)))
    return [entry.tokens for entry in entries], sum(cycles)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_true_prediction_takes_fewer_cycles_and_a_wrong_one_changes_no_text(
    drafter: type[Suffix | Lookup | SuffixRecycling], temperature: float
) -> None:
    texts, cycles = decoded(drafter(), [[]] * 3, temperature)
    for predicted in ([texts[0], [], texts[2]], [texts[1], [39] * 30, texts[0][:5]], texts):
        assert decoded(drafter(), predicted, temperature)[0] == texts
    assert decoded(drafter(), texts, temperature)[1] < cycles / 2


@pytest.mark.parametrize("drafter", [Suffix(cap=4), Lookup(length=4)])
def test_rows_draft_from_their_own_prediction_alone(drafter: Suffix | Lookup) -> None:
    drafter.open(3, 99)
    commit = first([[1, 2, 3], [1, 2, 3], [1, 2, 3]])
    assert commit.prompt is not None
    drafter.commit(replace(commit, prompt=replace(commit.prompt, predicted=[[3, 4, 5, 6, 7, 8], [], [3, 9]])))
    copies = drafted(drafter, [3, 3, 3])
    assert copies[:2] == [[4, 5, 6, 7], []]
    assert copies[2][0] == 9
    drafter.keep(torch.tensor([2, 0]))
    drafter.commit(later([[9], [0, 6]]))  # the second row leaves the prediction and comes back to it
    assert drafted(drafter, [9, 6])[1][:2] == [7, 8]


def drafted(drafter: Drafter, roots: list[int]) -> list[list[int]]:
    """The real tokens below each row's root."""
    tree = drafter.propose(torch.tensor(roots), None, CONTEXT)
    return [row[real][1:].tolist() for row, real in zip(tree.tokens, tree.valid, strict=True)]
