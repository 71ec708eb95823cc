"""Scores for how well pieces of a prompt match its question."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from specframe import InputError

Tokens = Sequence[int]

SATURATION = 1.2
"""k1 of BM25: how quickly further occurrences of a term lose weight."""
LENGTH = 0.75
"""b of BM25: how strongly long pieces are penalised."""


class Bm25:
    """BM25 (Robertson and Zaragoza 2009) over single tokens and pairs of adjacent tokens."""

    def score(self, pieces: Sequence[Tokens], question: Tokens) -> list[float]:
        """Returns the sum over the question's terms of idf f (k1 + 1) / (f + k1 (1 - b + b length / mean length))."""
        terms = [_terms(piece) for piece in pieces]
        holding = Counter(term for each in terms for term in each)
        mean = sum(map(len, pieces)) / max(1, len(pieces))
        asked = _terms(question)
        weights = {
            term: math.log(1 + (len(pieces) - holding[term] + 0.5) / (holding[term] + 0.5))
            for term in asked
            if holding[term]
        }
        scores = []
        for piece, counts in zip(pieces, terms, strict=True):
            slack = SATURATION * (1 - LENGTH + LENGTH * len(piece) / mean)
            found = ((weight, counts[term]) for term, weight in weights.items() if counts[term])
            scores.append(sum(weight * count * (SATURATION + 1) / (count + slack) for weight, count in found))
        return scores


class Embeddings:
    """Cosine similarity of mean embeddings, from a table with a vector for every token."""

    def __init__(self, table: Tensor) -> None:
        """Uses a table [V, D]."""
        self._table = table

    @classmethod
    def read(cls, file: str) -> Embeddings:
        """Reads the table of a safetensors file with one tensor [V, D]; raises InputError for any other file."""
        try:
            tensors = list(load_file(Path(file).expanduser()).values())
        except Exception as error:  # safetensors and the system raise different types of errors
            raise InputError(f"excerpt cannot read embeddings from {file}: {error}") from None
        if len(tensors) != 1 or tensors[0].dim() != 2:
            raise InputError(f"excerpt's embeddings are one tensor [vocabulary, width], and {file} holds others")
        return cls(tensors[0].float())

    def require(self, vocab: int) -> None:
        """Raises InputError for a table with fewer vectors than the vocabulary has tokens."""
        if len(self._table) < vocab:
            raise InputError(
                f"excerpt's embeddings are of {len(self._table)} tokens, and the target has {vocab}: they are of "
                "another model"
            )

    def score(self, pieces: Sequence[Tokens], question: Tokens) -> list[float]:
        """Returns the cosine between the means of each piece's vectors and of the question's."""
        means = torch.stack([self._table[torch.tensor(piece)].mean(0) for piece in (*pieces, question)])
        return torch.cosine_similarity(means[:-1], means[-1:]).tolist()


PieceRanking = Bm25 | Embeddings
"""A score for how well pieces match a question; `score` is above 0 for pieces that match."""


def _terms(tokens: Tokens) -> Counter[object]:
    terms: Counter[object] = Counter(tokens)
    terms.update(pairwise(tokens))
    return terms
