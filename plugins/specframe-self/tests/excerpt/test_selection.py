"""Which pieces of a prompt are read."""

from itertools import pairwise
from math import log

import pytest
import torch
from safetensors.torch import save_file

from specframe import InputError
from specframe_self.excerpt.ranking import Bm25, Embeddings
from specframe_self.excerpt.selection import select

NONE = frozenset[int]()
PROMPT = [90, 91, *range(10, 16), 1, 2, 3, 4, *range(20, 28), 1, 5, 6, 7, *range(30, 40), 2, 3]
"""A beginning, and a question at the end that the piece 1, 2, 3, 4 fits best, and 1, 5, 6, 7 not at all."""


def read(tokens=12, chunk=4, question=2, prompt=PROMPT, special=NONE, ranking=None):
    found = select(prompt, tokens, chunk, question, special, ranking or Bm25())
    assert found.places == sorted(set(found.places)) and len(found.places) == tokens
    return found


def test_the_piece_that_fits_is_read_in_its_place_between_beginning_and_question():
    found = read(tokens=10)
    text = [PROMPT[place] for place in found.places]
    assert found.fitting and text[:4] == PROMPT[:4] and text[-2:] == [2, 3] and text[4:8] == [1, 2, 3, 4]


def test_bm25_prefers_rare_terms_pairs_and_short_pieces():
    pieces = [[1, 2, 8], [2, 8, 1], [1, 8, 9], [1, 8, 9, 8, 8, 9, 9, 8], [7, 7, 7], [8, 8, 9]]
    first, without_pair, common, common_in_a_long_one, none, another = Bm25().score(pieces, [1, 2])
    assert first > without_pair > common > common_in_a_long_one > none == another == 0


def test_bm25_is_the_formula_of_a_second_implementation():
    pieces, question = [[1, 1, 2], [2, 3], [4, 4, 4, 4]], [1, 2]
    mean, scores = 3.0, []
    for piece in pieces:
        total = 0.0
        for count, holding in ((piece.count(1), 1), (piece.count(2), 2)):
            idf = log(1 + (3 - holding + 0.5) / (holding + 0.5))
            total += idf * count * 2.2 / (count + 1.2 * (1 - 0.75 + 0.75 * len(piece) / mean))
        pairs = list(pairwise(piece)).count((1, 2))
        total += log(1 + 2.5 / 1.5) * pairs * 2.2 / (pairs + 1.2 * (0.25 + 0.75 * len(piece) / mean))
        scores.append(total)
    assert Bm25().score(pieces, question) == pytest.approx(scores)


def test_where_nothing_fits_the_first_and_the_last_pieces_are_read():
    prompt = [*range(100, 124), 1, 2]
    found = read(tokens=14, chunk=4, prompt=prompt)
    assert not found.fitting
    assert [prompt[place] for place in found.places] == [*range(100, 108), *range(120, 124), 1, 2]


def test_special_tokens_survive_the_cut():
    prompt = [*range(100, 110), 7, *range(110, 120), 7, *range(120, 130), 1, 2]
    found = read(tokens=8, chunk=2, prompt=prompt, special=frozenset({7}))
    assert [prompt[place] for place in found.places].count(7) == 2


def test_more_special_tokens_than_room_are_cut():
    read(tokens=4, chunk=1, prompt=[7] * 40, special=frozenset({7}))


def test_embeddings_rank_by_the_cosine_of_means(tmp_path):
    table = torch.zeros(128, 2)
    table[:, 0], table[20:28] = 1.0, torch.tensor([0.0, 1.0])
    table[2:4] = torch.tensor([0.0, 1.0])
    save_file({"table": table}, tmp_path / "table.safetensors")
    ranking = Embeddings.read(str(tmp_path / "table.safetensors"))
    ranking.require(128)
    text = [PROMPT[place] for place in read(tokens=14, ranking=ranking).places]
    assert set(range(20, 26)).issubset(text) or len(set(text) & set(range(20, 28))) >= 6
    with pytest.raises(InputError, match=r"128 tokens, and the target has 129"):
        ranking.require(129)


@pytest.mark.parametrize("content", [None, b"no tensors"])
def test_embeddings_that_cannot_be_read_are_a_line(content, tmp_path):
    if content is not None:
        (tmp_path / "table").write_bytes(content)
    with pytest.raises(InputError, match="cannot read embeddings") as error:
        Embeddings.read(str(tmp_path / "table"))
    assert "\n" not in str(error.value)


def test_embeddings_of_another_form_are_refused(tmp_path):
    save_file({"a": torch.zeros(3)}, tmp_path / "table")
    with pytest.raises(InputError, match="one tensor"):
        Embeddings.read(str(tmp_path / "table"))
