"""Selections of the pieces of a prompt that match its question."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, Self

from specframe import InputError
from specframe.plugin import Drafter, Target, text_of
from specframe_self.excerpt.ranking import Bm25, Embeddings, PieceRanking, Tokens

log = logging.getLogger("specframe.excerpt")


class Marked:
    """A selection with which special tokens, such as a chat template's, are always read."""

    tokens: int

    def __init__(self) -> None:
        self._special: frozenset[int] = frozenset()

    def bind(self, target: Target, drafter: Drafter | None = None) -> None:
        """Finds out which tokens are special."""
        text = text_of(target)
        marks = [] if text.tokenizer is None else text.tokenizer.all_special_ids
        self._special = frozenset(marks) | frozenset(text.ends)

    def sized(self, tokens: int) -> Self:
        """Returns a copy for another number of tokens."""
        found = copy(self)
        found.tokens = tokens
        found.require_sizes()
        return found

    def require_sizes(self) -> None:
        """Raises InputError for impossible sizes."""
        raise NotImplementedError


class PromptPieces(Marked):
    """Pieces of a prompt, in order, that a ranking matches with its end, the question."""

    def __init__(self, tokens: int, chunk: int, question: int) -> None:
        super().__init__()
        self.tokens, self.chunk, self.question = tokens, chunk, question
        self._warned = False
        self.require_sizes()

    def require_sizes(self) -> None:
        """Raises InputError for a budget that the question fills, or for empty pieces."""
        if min(self.chunk, self.question) < 1 or self.tokens <= self.question:
            raise InputError(
                "excerpt needs chunk and question of at least 1, and more tokens than the question's, got "
                f"{self.chunk}, {self.question} and {self.tokens}"
            )

    def ranking(self) -> PieceRanking:
        """The score for how well pieces match."""
        raise NotImplementedError

    def choose(self, prompt: Sequence[int]) -> list[int]:
        """Returns the positions of a prompt that are read; if no piece matches, those of the first and last pieces."""
        found = select(prompt, self.tokens, self.chunk, self.question, self._special, self.ranking())
        if not found.fitting and not self._warned:
            self._warned = True
            log.warning("no piece of a prompt fits its question: its first and last pieces are read")
        return found.places


class Bm25Pieces(PromptPieces):
    """The pieces of a prompt that match its end, the question, by BM25 over tokens and pairs of tokens.

    The first piece and special tokens, such as a chat template's, are always read.

    Source: RAPID (Chen et al. 2025, arXiv 2502.20330), whose drafter reads the results of a retrieval model.

    Options:
        tokens: maximum number of prompt tokens that are read
        chunk: number of tokens in a piece
        question: number of tokens at the prompt's end that are the question
    """

    def __init__(self, *, tokens: int = 1024, chunk: int = 128, question: int = 128) -> None:
        super().__init__(tokens, chunk, question)

    def smaller(self) -> Bm25Pieces:
        """Returns a copy of three tokens."""
        return Bm25Pieces(tokens=3, chunk=1, question=1)

    def ranking(self) -> PieceRanking:
        """BM25."""
        return Bm25()


class EmbeddedPieces(PromptPieces):
    """The pieces of a prompt that match its end, the question, by the cosine between mean embeddings.

    The first piece and special tokens, such as a chat template's, are always read.

    Options:
        file: a safetensors file with one tensor, a vector for each of the target's tokens
        tokens: maximum number of prompt tokens that are read
        chunk: number of tokens in a piece
        question: number of tokens at the prompt's end that are the question
    """

    def __init__(self, *, file: str, tokens: int = 1024, chunk: int = 128, question: int = 128) -> None:
        super().__init__(tokens, chunk, question)
        self.file = file
        self._table: Embeddings | None = None

    def smaller(self) -> Bm25Pieces:
        """Returns a selection of three tokens by BM25, because the file has no vectors for a small target's tokens."""
        return Bm25Pieces(tokens=3, chunk=1, question=1)

    def bind(self, target: Target, drafter: Drafter | None = None) -> None:
        """Reads the file. Raises InputError for an invalid file, or one for another vocabulary."""
        super().bind(target, drafter)
        self._table = Embeddings.read(self.file)
        self._table.require(target.vocab_size)

    def ranking(self) -> PieceRanking:
        """The table of the file."""
        if self._table is None:
            raise InputError("the selection embeddings was used before bind(target)")
        return self._table


class Selected(NamedTuple):
    """The part of a prompt that is read."""

    places: list[int]
    """Positions of its tokens, ascending."""
    fitting: bool
    """True unless no piece scored above 0."""


def select(
    prompt: Tokens, tokens: int, chunk: int, keep: int, special: frozenset[int], ranking: PieceRanking
) -> Selected:
    """Selects the `tokens` tokens of a longer prompt that are read.

    These are the last `keep`, the question; the first `chunk`, where a chat template begins; special tokens; then the
    pieces of `chunk` tokens with the highest scores until the budget is used up. If no score is above 0, the first and
    last pieces are taken alternately.
    """
    end = len(prompt) - keep
    bounds = [(start, min(start + chunk, end)) for start in range(0, end, chunk)]
    scores = ranking.score([prompt[start:stop] for start, stop in bounds], prompt[end:])
    always = [*range(min(chunk, end)), *(place for place in range(end) if prompt[place] in special)]
    taken = {*range(end, len(prompt))}
    for places in (always, *(range(*bounds[piece]) for piece in _order(scores))):
        fresh = [place for place in dict.fromkeys(places) if place not in taken]
        taken.update(fresh[: tokens - len(taken)])
    return Selected(sorted(taken), max(scores) > 0)


def _order(scores: list[float]) -> list[int]:
    """Returns the pieces, best match first, followed by pieces without a match, alternately from both ends."""
    fitting = [piece for piece, score in enumerate(scores) if score > 0]
    rest = [piece for piece, score in enumerate(scores) if score <= 0]
    inwards = [rest[i // 2] if i % 2 == 0 else rest[-1 - i // 2] for i in range(len(rest))]
    return [*sorted(fitting, key=lambda piece: -scores[piece]), *inwards]
