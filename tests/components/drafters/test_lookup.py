"""Prompt lookup against transformers' own, and the drafter that drafts nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from specframe.components.drafters.lookup import Lookup
from specframe.components.drafters.none import NoDrafter
from specframe.kernel.errors import InputError
from specframe.kernel.types import Context, Draw, TokenTree
from specframe.sampling.laws import Sampling
from specframe.sampling.random import SeededRandom
from tests.components.path_drafter import assert_sound
from tests.components.sessions import first, later
from tests.tiers import examples

GREEDY = Sampling()
TEXT = st.lists(st.integers(0, 3), min_size=2, max_size=24)


def drafted(drafter: Lookup | NoDrafter, texts: list[list[int]]) -> TokenTree:
    roots = torch.tensor([text[-1] for text in texts])
    return drafter.propose(roots, None, Context(GREEDY, SeededRandom(0, len(texts)).draft))


def copies(tree: TokenTree) -> list[list[int]]:
    """The real tokens below each row's root."""
    return [row[real][1:].tolist() for row, real in zip(tree.tokens, tree.valid, strict=True)]


def theirs(text: list[int], ngram: int, length: int) -> list[int]:
    """The tokens that transformers would copy after this text."""
    generator = PromptLookupCandidateGenerator(num_output_tokens=length, max_matching_ngram_size=ngram, max_length=1000)
    candidates, _ = generator.get_candidates(torch.tensor([text]))
    return candidates[0, len(text) :].tolist()


@examples(2)
@given(texts=st.lists(TEXT, min_size=1, max_size=4), ngram=st.integers(1, 4), length=st.integers(1, 12))
def test_ragged_batch_copies_what_transformers_copies(texts: list[list[int]], ngram: int, length: int) -> None:
    drafter = Lookup(ngram=ngram, length=length)
    drafter.open(8, 100)
    drafter.commit(first(texts))
    tree = drafted(drafter, texts)
    expected = [theirs(text, ngram, length) for text in texts]
    assert copies(tree) == expected
    assert_sound(tree, max(map(len, expected)))
    assert tree.tokens.shape[1] <= drafter.promise.nodes
    assert (tree.draw == Draw.TOP).all()


@given(
    texts=st.lists(TEXT, min_size=3, max_size=3),
    added=st.lists(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=3, max_size=3), max_size=4),
    rows=st.permutations([0, 1, 2]),
    kept=st.integers(1, 3),
)
def test_commits_and_finished_rows(
    texts: list[list[int]], added: list[list[list[int]]], rows: list[int], kept: int
) -> None:
    drafter = Lookup()
    drafter.open(8, 100)
    drafter.commit(first([[1, 1, 2]] * 2))  # an earlier session, to be forgotten
    drafter.open(8, 100)
    drafter.commit(first(texts))
    for tokens in added:
        drafter.commit(later(tokens))
        texts = [text + more for text, more in zip(texts, tokens, strict=True)]
        assert copies(drafted(drafter, texts)) == [theirs(text, 3, 10) for text in texts]
    drafter.keep(torch.tensor(rows[:kept]))
    texts = [[*texts[row], 2] for row in rows[:kept]]
    drafter.commit(later([[2]] * kept))
    assert copies(drafted(drafter, texts)) == [theirs(text, 3, 10) for text in texts]


def test_longest_suffix_wins_then_the_earliest() -> None:
    drafter = Lookup(ngram=2, length=2)
    texts = [[5, 1, 9, 9, 7, 1, 8, 8, 7, 1, 6, 6, 7, 1]]
    drafter.open(8, 100)
    drafter.commit(first(texts))
    assert copies(drafted(drafter, texts)) == [[8, 8]]


def test_no_match_anywhere_is_a_root_only_tree() -> None:
    drafter = Lookup()
    texts = [[1, 2, 3], [4, 5, 6]]
    drafter.open(8, 100)
    drafter.commit(first(texts))
    tree = drafted(drafter, texts)
    assert tree.tokens.tolist() == [[3], [6]]
    assert tree.levels == 0


def test_no_drafter_proposes_the_root_alone() -> None:
    drafter = NoDrafter()
    drafter.open(8, 100)
    drafter.commit(first([[1, 2], [3, 4]]))
    drafter.keep(torch.tensor([1]))
    tree = drafted(drafter, [[3, 4]])
    assert tree.tokens.tolist() == [[4]] and tree.levels == 0
    assert drafter.promise.nodes == 1 and drafter.promise.draws == {Draw.TOP} and drafter.taps == frozenset()


def test_options_are_checked() -> None:
    with pytest.raises(InputError, match="at least 1"):
        Lookup(ngram=0)
    with pytest.raises(InputError, match="at least 1"):
        Lookup(length=0)
