"""Retrieval from a store: the most frequent continuations, and a store that remembers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specframe import compose
from specframe.components.targets.table import TableTarget
from specframe.kernel.costs import Costs
from specframe.kernel.errors import InputError
from specframe.testing import check_drafter
from specframe_text.retrieval.corpus import Corpus
from specframe_text.retrieval.retrieval import Retrieval
from tests.components.path_drafter import assert_sound, path
from tests.components.sessions import CONTEXT, first, later
from tests.tiers import examples

TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=20), min_size=1, max_size=6)


def store(texts: list[list[int]]) -> Corpus:
    made = Corpus()
    made.bind(TableTarget(vocab=3))
    made.append(texts)
    return made


def drafted(drafter: Retrieval, text: list[int]) -> list[tuple[int, ...]]:
    """The paths below the root, in the tree's order."""
    drafter.open(1, 99)
    drafter.commit(first([text]))
    tree = drafter.propose(torch.tensor([text[-1]]), None, CONTEXT)
    assert_sound(tree, tree.levels)
    assert tree.tokens.shape[1] <= (drafter.promise.nodes or 0)
    return [path(tree, 0, node)[1:] for node in range(1, tree.tokens.shape[1])]


@examples(2)
@given(
    texts=TEXTS,
    text=st.lists(st.integers(0, 2), min_size=2, max_size=12),
    nodes=st.integers(1, 9),
    shortest=st.integers(1, 3),
    least=st.sampled_from([0.0, 0.1, 0.4]),
)
def test_the_most_frequent_prefixes_are_proposed(
    texts: list[list[int]], text: list[int], nodes: int, shortest: int, least: float
) -> None:
    drafter = Retrieval(store=store(texts), nodes=nodes, length=4, shortest=shortest, least=least, samples=999)
    found = drafted(drafter, text)
    places = [(other, end) for other in texts for end in range(1, len(other) + 1)]
    match = max(
        (m for m in range(len(text) + 1) if any(t[e - m : e] == text[-m:] for t, e in places if e >= m)), default=0
    )
    counts: Counter[tuple[int, ...]] = Counter()
    if match >= shortest:
        ends = [t[e : e + min(4, 2 * match)] for t, e in places if e >= match and t[e - match : e] == text[-match:]]
        counts.update(tuple(tokens[:length]) for tokens in ends for length in range(1, len(tokens) + 1))
        counts = Counter({prefix: many for prefix, many in counts.items() if many >= least * len(ends)})
    assert len(set(found)) == len(found) == min(nodes - 1, len(counts))
    assert sorted(counts[prefix] for prefix in found) == sorted(counts.values(), reverse=True)[: nodes - 1][::-1]


def test_where_nodes_cost_the_likeliest_are_proposed() -> None:
    """One occurrence of one token counts for a third: 1 / (1 + 2 / 1), then as much again of two tokens' half."""
    drafter = Retrieval(store=store([[0, 1, 2]]), shortest=1)
    drafter.open(1, 99)
    drafter.commit(first([[2, 0]]))
    for slope, levels in ((0.01, 2), (0.2, 1), (0.4, 0)):
        costs = Costs.of({1: 1.0, 11: 1.0 + 10 * slope})
        assert drafter.propose(torch.tensor([0]), None, replace(CONTEXT, costs=costs)).levels == levels


def test_finished_texts_are_remembered_once() -> None:
    memory = store([])
    drafter = Retrieval(store=memory, remember=True)
    drafter.bind(TableTarget(vocab=3))
    drafter.open(2, 99)
    drafter.commit(first([[0, 1, 1, 2], [2, 2, 0]]))
    drafter.commit(later([[0], [1]]))
    assert len(memory) == 0
    drafter.keep(torch.tensor([1]))
    assert memory.find([1, 1, 2], length=3, limit=9).tokens == [[0]]
    drafter.open(2, 99)
    assert memory.find([2, 2, 0], length=3, limit=9).tokens == [[1]]
    assert len(memory) == 6 + 5, "the ends of texts count"


def test_texts_that_cannot_be_kept_stop_remembering_not_decoding(monkeypatch, caplog) -> None:
    memory, asked = Corpus(), []

    def full(texts: object) -> None:
        asked.append(texts)
        raise InputError("there is no room")

    monkeypatch.setattr(memory, "append", full)
    target = TableTarget(vocab=8, sharpness=1.5)
    pipeline = compose(target=target, drafter=Retrieval(store=memory, remember=True), run={"batch": 2})
    prompts = [[0, 1, 2], [3, 1], [5, 5, 6, 2]]
    wanted = pipeline.plain().generate(prompts, max_new_tokens=9).tokens
    for _ in range(2):
        assert pipeline.generate(prompts, max_new_tokens=9).tokens == wanted
    assert [record.message for record in caplog.records] == [
        "finished texts are remembered no more: InputError: there is no room"
    ]
    assert len(asked) == 1 and len(memory) == 0


def test_a_store_of_another_tokenizer_is_refused() -> None:
    with pytest.raises(InputError, match="of another tokenizer"):
        Retrieval(store=store([[0, 1]])).bind(TableTarget(vocab=5))


def test_what_is_remembered_changes_the_drafts_and_not_the_text() -> None:
    """`match` has one random number for each position, so a seed's text does not depend on earlier requests."""
    memory, target = Corpus(), TableTarget(vocab=8, sharpness=1.5)
    pipeline = compose(target=target, drafter=Retrieval(store=memory, remember=True), sampling={"temperature": 0.8})
    plain = compose(target=target, sampling={"temperature": 0.8})
    prompts = [[0, 1, 2], [3, 1], [5, 5, 6, 2]]
    taus = []
    for _ in range(2):
        found = pipeline.generate(prompts, max_new_tokens=60, seed=4)
        assert found.tokens == plain.generate(prompts, max_new_tokens=60, seed=4).tokens
        taus.append(found.acceptance.tau)
    assert len(memory) >= 2 * sum(len(prompt) + 60 + 1 for prompt in prompts)
    assert taus[1] > taus[0] + 1, "the second time it drafts what it wrote the first time"


def test_conformance() -> None:
    check_drafter(lambda: Retrieval(store=store([[0, 1, 2, 0, 1, 1], [2, 1, 0]]), nodes=5, shortest=1))


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="retrieval needs nodes, length, shortest and samples of at least 1"):
        Retrieval(store=Corpus(), nodes=0)
