"""Spelling of a text by the drafter's tokens, found by bisection, against a search through all of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import specframe
from specframe.components.targets.tokenizer import TokenizerSource
from specframe_models.vocabularies.lexicon import TEXTS, Spellings, StringLexicon
from specframe_models.vocabularies.vocabulary import Vocabulary, toys


def real() -> tuple[Vocabulary, Vocabulary]:
    drafter = Vocabulary.of(TokenizerSource(specframe.model_folder("talk-7m")).get(), 4096)
    twice = [piece + other for piece, other in zip(drafter.pieces[300:900], drafter.pieces[900:1500], strict=True)]
    pieces = (*drafter.pieces[:2000], *twice, *drafter.pieces[100:140])  # longer ones, and some that stand twice
    return drafter, Vocabulary(pieces, drafter.encode, drafter.encode_prompt, drafter.special, drafter.end)


def slowly(drafter: Vocabulary, target: Vocabulary, direct: Tensor, text: bytes) -> tuple[list[int], list[bool]]:
    """The same by definition, a piece at a time."""
    numbers: dict[bytes, int] = {}
    for number, piece in enumerate(target.pieces):
        if piece:
            numbers.setdefault(piece, number)
    beginnings = {piece[:end] for piece in numbers for end in range(1, len(piece))}
    into, longer = [], []
    for place, piece in enumerate(drafter.pieces):
        whole = text + (piece or b"")
        best = next((end for end in range(len(whole), 0, -1) if whole[:end] in numbers), None)
        token = len(target.pieces) if best is None else numbers[whole[:best]]
        into.append(int(direct[place]) if not text and token == len(target.pieces) else token)
        longer.append(bool(piece) and whole in beginnings)
    return into, longer


@pytest.mark.parametrize("pair", [toys(5), toys(40), real()], ids=["small", "larger", "tokenizers"])
def test_endings_are_those_of_a_search_through_all_tokens(pair: tuple[Vocabulary, Vocabulary]) -> None:
    drafter, target = pair
    spellings = Spellings(drafter, target)
    lexicon = StringLexicon(spellings, drafter, target, 4)
    written = [number for number, piece in enumerate(drafter.pieces) if piece]
    draw = torch.Generator().manual_seed(0)
    picked = [written[place] for place in torch.randint(len(written), (12,), generator=draw).tolist()]
    for prefix in [(), *((token,) for token in picked), *zip(picked[::2], picked[1::2], strict=True)]:
        into, longer = lexicon.endings(prefix)
        expected = slowly(drafter, target, spellings.direct, drafter.write(prefix))
        assert (into.tolist(), longer.tolist()) == expected


def test_few_texts_are_remembered() -> None:
    drafter, target = real()
    lexicon = StringLexicon(Spellings(drafter, target), drafter, target, 4)
    for token in range(300, 310 + TEXTS):
        lexicon.endings((token,))
    assert lexicon._find.cache_info().currsize == TEXTS
