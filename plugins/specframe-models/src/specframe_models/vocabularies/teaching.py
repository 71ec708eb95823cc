"""The target's answers, translated for a drafter of another vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, groupby

import torch
from torch import Tensor

from specframe.plugin import Teacher
from specframe_models.vocabularies.lexicon import Prefix
from specframe_models.vocabularies.reading import Reading
from specframe_models.vocabularies.vocabulary import Vocabulary, shared

LEAST = 1e-8
"""Minimum probability of a token, so that divergences of the drafter from the target are finite."""


@dataclass(frozen=True, kw_only=True)
class Translated(Teacher):
    """A teacher in a drafter's tokens.

    Its distributions are the target's, in which each token's probability counts for the first of the drafter's tokens
    that write it. Tokens that the drafter cannot write are missing from the sum. Within an n-gram that the target
    wrote, only the following token is known.
    """

    ngrams: Tensor  # [B, L] bool, positions within an n-gram


@dataclass
class Text:
    """An answer in the drafter's tokens, with its prompt, and the known distributions after some tokens."""

    tokens: list[int]
    answers: dict[int, int] = field(default_factory=dict)
    """Drafter token -> position in the target's text with the distribution after it."""
    following: dict[int, int] = field(default_factory=dict)
    """The following token, within an n-gram."""


class Translation:
    """Converts teachers of the target's texts to teachers of a drafter's texts.

    A distribution is translated where a token of the target and one of the drafter end together. N-grams are learnt
    where the drafter's text spells them in the given way.
    """

    def __init__(self, drafter: Vocabulary, target: Vocabulary, replace: Mapping[str, str]) -> None:
        self._drafter, self._target, self._replace = drafter, target, replace
        own, other = shared(drafter, target)
        self._size = len(drafter.pieces)
        self._same = torch.full((len(target.pieces),), self._size).scatter(0, other, own)
        """The drafter's token that equals each of the target's, [V]; Vd if there is none."""

    def __call__(self, teacher: Teacher, answers: Tensor, ngrams: Mapping[int, Prefix]) -> Translated:
        """Returns the translated teacher, a text for each run of `answers` [B, L]: positions before a target token.

        `ngrams` are tokens of the target, each with the several drafter tokens that write it.
        """
        first = self._same.clone()
        if ngrams:
            first[list(ngrams)] = torch.tensor([spelled[0] for spelled in ngrams.values()])
        first = first.to(teacher.logits.device)
        rows = zip(teacher.tokens.tolist(), teacher.mask.tolist(), answers.tolist(), strict=True)
        texts = [
            (row, self._read(tokens, counts, run, ngrams))
            for row, (tokens, counts, written) in enumerate(rows)
            for run in _runs(written)
        ] or [(0, Text([0, 0]))]
        length = max(len(text.tokens) for _, text in texts)
        made = self._blank(teacher, len(texts), length)
        for place, (row, text) in enumerate(texts):
            made.tokens[place, : len(text.tokens)] = torch.tensor(text.tokens, device=made.tokens.device)
            if text.answers:
                places, positions = list(text.answers), list(text.answers.values())
                made.logits[place, places] = self._laws(teacher.logits[row, positions], first)
                made.mask[place, places] = teacher.mask[row, positions]
            for position, token in text.following.items():
                made.logits[place, position] = made.logits.new_full((self._size,), LEAST).log()
                made.logits[place, position, token] = 0.0
                made.mask[place, position] = made.ngrams[place, position] = True
        return made

    def _read(self, tokens: list[int], counts: list[bool], run: tuple[int, int], ngrams: Mapping[int, Prefix]) -> Text:
        """Returns an answer, and the tokens after which the run's distributions are known; some of these count."""
        first, last = run
        reading = Reading(self._drafter, self._target, tokens[: first + 1], self._replace)
        prompt = len(reading.tokens)
        written = tokens[first + 1 : last + 2]
        reading.write(written)
        text = Text(reading.tokens)
        own = text.tokens[prompt:]
        same = _alike(self._drafter.write(own), self._target.write(written))
        places: dict[int, int] = {}
        for after, end in enumerate(_ends(self._drafter, own), prompt - 1):
            places.setdefault(end, after)
        ends = list(_ends(self._target, written))[: last - first + 1]
        for position, end in enumerate(ends, first):
            place = places.get(end)
            if place is None or place in text.answers or end > same:
                continue
            text.answers[place] = position
            if counts[position] and position - first < len(written):
                spelled = ngrams.get(written[position - first], ())
                if tuple(text.tokens[place + 1 : place + 1 + len(spelled)]) == spelled:
                    text.following.update((place + 1 + index, token) for index, token in enumerate(spelled[1:]))
        return text

    def _laws(self, logits: Tensor, first: Tensor) -> Tensor:
        """Returns the logarithms of the target's probabilities, given logits [N, V], by the drafter's tokens: [N, Vd].

        A token's probability counts for the drafter's token `first` [V]; Vd drops it.
        """
        law = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        mass = law.new_zeros(len(law), self._size + 1).index_add_(1, first, law)
        return mass[:, :-1].clamp(min=LEAST).log()

    def _blank(self, teacher: Teacher, rows: int, length: int) -> Translated:
        dtype = torch.promote_types(teacher.logits.dtype, torch.float32)
        logits = teacher.logits.new_zeros(rows, length, self._size, dtype=dtype)
        tokens = teacher.tokens.new_zeros(rows, length)
        mask = torch.zeros_like(tokens, dtype=torch.bool)
        # These logits are logarithms of probabilities with some missing, so they must not be normalised again.
        return Translated(
            tokens, mask, {}, logits, normaliser=logits.new_zeros(rows, length), ngrams=torch.zeros_like(mask)
        )


def _runs(flags: Iterable[bool]) -> Iterable[tuple[int, int]]:
    """Yields the first and last index of every run of true flags."""
    for is_set, group in groupby(enumerate(flags), key=lambda item: item[1]):
        places = [place for place, _ in group]
        if is_set:
            yield places[0], places[-1]


def _alike(one: bytes, other: bytes) -> int:
    """Returns the length of the common prefix in bytes."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (first, second) in pairs if first != second), min(len(one), len(other)))


def _ends(vocabulary: Vocabulary, tokens: Iterable[int]) -> Iterable[int]:
    """Returns the number of bytes written before the first of the tokens, and after each."""
    return accumulate((len(vocabulary.pieces[token] or b"") for token in tokens), initial=0)
