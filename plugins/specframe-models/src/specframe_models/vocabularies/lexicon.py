"""Spellings of the target's tokens in the drafter's tokens: by n-grams, and by strings."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from specframe_models.vocabularies.vocabulary import Vocabulary, shared

TEXTS = 256
"""Number of texts or prefixes whose results are cached."""

Prefix = tuple[int, ...]
"""Tokens of the drafter with which one token of the target begins."""


class Spellings:
    """The drafter's spelling of every token of the target: by an equal token, or by several."""

    def __init__(self, drafter: Vocabulary, target: Vocabulary, device: torch.device | None = None) -> None:
        self.vocab = len(target.pieces)
        own, other = shared(drafter, target)
        self.direct = torch.full((len(drafter.pieces),), self.vocab).scatter(0, own, other).to(device)
        """The target's token that equals each of the drafter's, [Vd]; `vocab` if there is none."""
        self._same = dict(zip(other.tolist(), own.tolist(), strict=True))
        self._drafter = drafter
        self._target = target
        self._found: dict[int, Prefix] = {}

    @cached_property
    def several(self) -> dict[int, Prefix]:
        """Returns the tokens that the drafter spells with several of its own."""
        return {token: spelled for token in range(self.vocab) if len(spelled := self.of(token)) > 1}

    def of(self, token: int) -> Prefix:
        """Returns the drafter's tokens for a token of the target; empty if it cannot write it."""
        if token in self._same:
            return (self._same[token],)
        if token not in self._found:
            self._found[token] = self._drafter.spell(self._target.pieces[token])
        return self._found[token]


class NgramLexicon:
    """Tokens of both vocabularies, and n-grams of the drafter that are one token of the target (OmniDraft).

    A token that begins n-grams stands for itself if none of them follows.
    """

    def __init__(self, spellings: Spellings, reach: int) -> None:
        self.vocab = spellings.vocab
        self.reach = reach
        self.spelling = spellings.of
        self._direct = spellings.direct
        self._complete: dict[Prefix, int] = {}
        self._last: dict[Prefix, dict[int, int]] = {}
        self._longer: dict[Prefix, set[int]] = {}
        self._find = lru_cache(TEXTS)(self._search)

    @property
    def ngrams(self) -> dict[int, Prefix]:
        """The n-grams, by the token of the target."""
        return {token: spelled for spelled, token in self._complete.items()}

    def add(self, tokens: Iterable[int]) -> None:
        """Adds tokens of the target that need two to `reach` of the drafter's; others are ignored."""
        for token in tokens:
            spelled = self.spelling(token)
            if 2 <= len(spelled) <= self.reach and spelled not in self._complete:
                self._complete[spelled] = token
                self._last.setdefault(spelled[:-1], {})[spelled[-1]] = token
                for end in range(1, len(spelled)):
                    self._longer.setdefault(spelled[: end - 1], set()).add(spelled[end - 1])
                self._find.cache_clear()

    def endings(self, prefix: Prefix) -> tuple[Tensor, Tensor]:
        """Returns the target token completed by each token after the prefix, and whether a longer one may follow.

        The first is [Vd] int64, `vocab` if no target token is completed; the second [Vd] bool.
        """
        return self._find(prefix)

    def _search(self, prefix: Prefix) -> tuple[Tensor, Tensor]:
        longer = torch.zeros_like(self._direct, dtype=torch.bool)
        if going := self._longer.get(prefix):
            longer[list(going)] = True
        return self._into(prefix), longer

    def _into(self, prefix: Prefix) -> Tensor:
        if not prefix:
            return self._direct
        own = int(self._direct[prefix[0]])
        for end in range(2, len(prefix) + 1):
            own = self._complete.get(prefix[:end], own)
        into = torch.full_like(self._direct, own)
        for last, token in self._last.get(prefix, {}).items():
            into[last] = token
        return into


class StringLexicon:
    """All ways to write a token of the target: a text stands for the longest token with which it begins."""

    def __init__(self, spellings: Spellings, drafter: Vocabulary, target: Vocabulary, reach: int) -> None:
        self.vocab = spellings.vocab
        self.reach = reach
        self.spelling = spellings.of
        self._direct = spellings.direct
        self._drafter = drafter
        self._own = SortedPieces(drafter.pieces)
        self._others = SortedPieces(target.pieces)
        self._find = lru_cache(TEXTS)(self._search)

    def endings(self, prefix: Prefix) -> tuple[Tensor, Tensor]:
        """Returns the target token completed by each token after the prefix, and whether a longer one may follow.

        The first is [Vd] int64, `vocab` if no target token is completed; the second [Vd] bool.
        """
        return self._find(self._drafter.write(prefix))

    def _search(self, text: bytes) -> tuple[Tensor, Tensor]:
        """Returns the target's longest token for each of the drafter's pieces after a text, and whether it can grow.

        Only target tokens that begin with the text matter, and pieces that continue as they do.
        """
        into = torch.full(self._direct.shape, self._longest(text), dtype=torch.int64)
        longer = torch.zeros(len(into), dtype=torch.bool)
        ends = {piece[len(text) :]: token for piece, token in self._others.beginning(text) if piece != text}
        for end in sorted(ends, key=len):
            into[self._own.numbers(end)] = ends[end]
        for beginning in {end[:cut] for end in ends for cut in range(1, len(end))}:
            if (same := self._own.equal(beginning)) is not None:
                longer[same] = True
        into, longer = into.to(self._direct.device), longer.to(self._direct.device)
        if not text:  # special tokens write nothing
            into = torch.where(into == self.vocab, self._direct, into)
        return into, longer

    def _longest(self, text: bytes) -> int:
        """Returns the target's longest token with which a text begins; `vocab` if there is none."""
        for end in range(len(text), 0, -1):
            if (same := self._others.equal(text[:end])) is not None:
                return int(same[0])
        return self.vocab


Lexicon = NgramLexicon | StringLexicon
"""Map from the target's tokens to the drafter's tokens that spell them.

`spelling(token)` is empty if the drafter cannot write the token; `reach` is the maximum number of the drafter's tokens
for one of the target's.
"""


class SortedPieces:
    """The pieces of a vocabulary in sorted order, so that pieces with a common prefix are adjacent."""

    def __init__(self, pieces: Sequence[bytes | None]) -> None:
        order = sorted((piece, number) for number, piece in enumerate(pieces) if piece)
        self._pieces = [piece for piece, _ in order]
        self._numbers = torch.tensor([number for _, number in order], dtype=torch.int64)

    def numbers(self, beginning: bytes) -> Tensor:
        """Returns the tokens whose pieces begin with some bytes, int64 [n]."""
        return self._numbers[self._range(beginning)]

    def beginning(self, text: bytes) -> Iterator[tuple[bytes, int]]:
        """Yields the pieces that begin with a text, and the first token of each."""
        found = self._range(text)
        last = None
        for piece, number in zip(self._pieces[found], self._numbers[found].tolist(), strict=True):
            if piece != last:
                yield piece, number
            last = piece

    def equal(self, piece: bytes) -> Tensor | None:
        """Returns the tokens that write exactly this piece, in order; None if there are none."""
        start, end = bisect_left(self._pieces, piece), bisect_right(self._pieces, piece)
        return self._numbers[start:end] if start < end else None

    def _range(self, beginning: bytes) -> slice:
        start = bisect_left(self._pieces, beginning)
        return slice(start, bisect_right(self._pieces, beginning, start, key=lambda piece: piece[: len(beginning)]))
