"""Which tokens of the target the drafter writes with which of its own: by n-grams, and by strings."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import torch
from torch import Tensor

from specframe_vocabularies.law import Prefix
from specframe_vocabularies.vocabulary import Vocabulary, shared


class Spellings:
    """How the drafter writes every token of the target: with the same token, or with several."""

    def __init__(self, drafter: Vocabulary, target: Vocabulary, device: torch.device | None = None) -> None:
        self.vocab = len(target.pieces)
        own, other = shared(drafter, target)
        self.direct = torch.full((len(drafter.pieces),), self.vocab).scatter(0, own, other).to(device)
        """The target's token that is the same as each of the drafter's, [Vd]; `vocab` where there is none."""
        self._same = dict(zip(other.tolist(), own.tolist(), strict=True))
        self._drafter = drafter
        self._target = target
        self._found: dict[int, Prefix] = {}

    def of(self, token: int) -> Prefix:
        """What the drafter reads for a token of the target; nothing where it cannot write it."""
        if token in self._same:
            return (self._same[token],)
        if token not in self._found:
            self._found[token] = self._drafter.spell(self._target.pieces[token])
        return self._found[token]


class NgramLexicon:
    """The tokens that both vocabularies have, and n-grams of the drafter that are one token of the target (OmniDraft).

    A token that begins n-grams stands for itself where none of them follows.
    """

    def __init__(self, spellings: Spellings, reach: int) -> None:
        self.vocab = spellings.vocab
        self.reach = reach
        self.spelling = spellings.of
        self._direct = spellings.direct
        self._complete: dict[Prefix, int] = {}
        self._last: dict[Prefix, dict[int, int]] = {}
        self._longer: dict[Prefix, set[int]] = {}
        self._found: dict[Prefix, tuple[Tensor, Tensor]] = {}

    def add(self, tokens: Iterable[int]) -> None:
        """Adds tokens of the target that take two to `reach` of the drafter's; others are left out."""
        for token in tokens:
            spelled = self.spelling(token)
            if 2 <= len(spelled) <= self.reach and spelled not in self._complete:
                self._complete[spelled] = token
                self._last.setdefault(spelled[:-1], {})[spelled[-1]] = token
                for end in range(1, len(spelled)):
                    self._longer.setdefault(spelled[: end - 1], set()).add(spelled[end - 1])
                self._found.clear()

    def endings(self, prefix: Prefix) -> tuple[Tensor, Tensor]:
        """As of `Lexicon`."""
        if prefix not in self._found:
            longer = torch.zeros_like(self._direct, dtype=torch.bool)
            if going := self._longer.get(prefix):
                longer[list(going)] = True
            self._found[prefix] = self._into(prefix), longer
        return self._found[prefix]

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
    """Every way to write a token of the target: a text stands for the longest token that it begins with."""

    def __init__(self, spellings: Spellings, drafter: Vocabulary, target: Vocabulary, reach: int) -> None:
        self.vocab = spellings.vocab
        self.reach = reach
        self.spelling = spellings.of
        self._spellings = spellings
        self._drafter = drafter
        self._target = target
        self._found: dict[bytes, tuple[Tensor, Tensor]] = {}

    def endings(self, prefix: Prefix) -> tuple[Tensor, Tensor]:
        """As of `Lexicon`."""
        text = self._drafter.write(prefix)
        if text not in self._found:
            self._found[text] = self._find(text)
        return self._found[text]

    def _find(self, text: bytes) -> tuple[Tensor, Tensor]:
        pairs = [self._outcome(text, piece) for piece in self._drafter.pieces]
        device = self._spellings.direct.device
        into = torch.tensor([token for token, _ in pairs], device=device)
        if not text:  # special tokens, which write nothing
            into = torch.where(into == self.vocab, self._spellings.direct, into)
        return into, torch.tensor([longer for _, longer in pairs], device=device)

    def _outcome(self, text: bytes, piece: bytes | None) -> tuple[int, bool]:
        """The longest token of the target that a text begins with, and whether more text may make a longer one."""
        whole = text + (piece or b"")
        best = next((end for end in range(len(whole), 0, -1) if whole[:end] in self._numbers), None)
        token = self.vocab if best is None else self._numbers[whole[:best]]
        return token, bool(piece) and whole in self._beginnings

    @cached_property
    def _numbers(self) -> dict[bytes, int]:
        numbers: dict[bytes, int] = {}
        for number, piece in enumerate(self._target.pieces):
            if piece:
                numbers.setdefault(piece, number)
        return numbers

    @cached_property
    def _beginnings(self) -> set[bytes]:
        """The proper beginnings of the target's tokens."""
        return {piece[:end] for piece in self._numbers for end in range(1, len(piece))}
