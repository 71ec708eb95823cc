"""OmniDraft's n-grams: tokens of the target that another vocabulary's drafter writes with several of its own."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from specframe import InputError
from specframe.plugin import Committed, Context, Drafter, Promise, Target, Teacher, TokenTree, TreePolicy
from specframe_models.vocabularies.lexicon import NgramLexicon
from specframe_models.vocabularies.merging import Merging
from specframe_models.vocabularies.translator import Pair
from specframe_models.vocabularies.untrained import translated


class Ngrams:
    """Proposes tokens of both vocabularies, and n-grams of the drafter that are one token of the target.

    An n-gram has the product of its tokens' probabilities. A token that begins n-grams passes them their mass and keeps
    the rest. As published (`q'(t) = q(d)` for both) the mass would be counted twice, and the recorded law would not be
    that of the proposed tokens. Here it is, so every tree policy and every verifier remains lossless.

    N-grams are those of tokens in the row's text so far, prompt included, or of all tokens. With `shared`, they are
    those of all texts of a session, which for a server lasts from start to end. A draft then depends on other rows, but
    only on what is known before a token is drawn, so distributions are unchanged.

    Within `online` the drafter learns from the target's answers (OmniDraft's hybrid distillation): the loss compares
    distributions over the drafter's tokens, in which an n-gram counts for its first token; within n-grams that the
    target wrote, the following token is learnt.

    Source: OmniDraft (arXiv 2507.02659), its n-gram cache; the law is corrected.

    Options:
        drafter: a drafter that reads tokens alone, such as `model`
        cache: seen (n-grams in the row's text so far) or all (every token that the drafter can write)
        shared: whether n-grams in any row's text are used for all rows, with `seen`
        width: number of n-gram prefixes that are followed, below each node and level
        reach: maximum number of tokens of an n-gram
        least: minimum probability of a prefix that is followed
        replace: replacements in the prompt's text, so that the drafter reads its own chat format
    """

    taps: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        drafter: Drafter,
        cache: Literal["seen", "all"] = "seen",
        shared: bool = False,
        width: int = 4,
        reach: int = 4,
        least: float = 0.01,
        replace: dict[str, str] | None = None,
    ) -> None:
        if shared and cache == "all":
            raise InputError("omnidraft: `cache: all` holds every n-gram from the start: leave out shared")
        self.cache, self.shared = cache, shared
        self.promise = Promise(row_independent=not shared)
        self._merging = Merging("omnidraft", drafter, replace, width, least, reach)
        self._rows: list[NgramLexicon] = []

    @classmethod
    def given(
        cls,
        drafter: Drafter,
        pair: Pair,
        *,
        cache: Literal["seen", "all"] = "seen",
        shared: bool = False,
        width: int = 4,
        reach: int = 4,
        least: float = 0.01,
    ) -> Ngrams:
        """Creates this drafter around one with given vocabularies of drafter and target."""
        made = cls(drafter=drafter, cache=cache, shared=shared, width=width, reach=reach, least=least)
        made._merging.translator.given = pair
        return made

    def untrained(self, vocab: int) -> Ngrams:
        """Returns a copy around an untrained drafter, over two small vocabularies."""
        own = self._merging
        small = translated(own.translator.drafter, vocab)
        follow = own.follow
        return Ngrams.given(
            *small, cache=self.cache, shared=self.shared, width=follow.width, reach=own.reach, least=follow.least
        )

    @property
    def drafter(self) -> Any:
        """The drafter of another vocabulary."""
        return self._merging.translator.drafter

    def bind(self, target: Target) -> None:
        """Reads both vocabularies."""
        self._spellings, _ = self._merging.bind(target)
        self._common: NgramLexicon | None = None
        """The lexicon of all rows, if they share one."""
        if self.cache == "all":
            self._common = self._lexicon()
            self._common.add(range(target.vocab_size))

    def open(self, slots: int, room: int) -> None:
        """Starts a session without rows and without shared n-grams."""
        self._rows = []
        if self.shared:
            self._common = self._lexicon()
        self._merging.translator.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns a draft below root [B], grown by the tree policy."""
        return self._merging.propose(root, tree, context, self._rows)

    def commit(self, committed: Committed) -> None:
        """Reads the committed tokens and adds their n-grams."""
        self._merging.translator.commit(committed)
        if (prompts := committed.prompt) is not None:
            for row, count in zip(prompts.tokens.tolist(), prompts.count.tolist(), strict=True):
                self._rows.append(self._common or self._lexicon())
                self._learn(len(self._rows) - 1, row[:count])
        first = len(self._rows) - len(committed.count)
        pairs = zip(committed.tokens.tolist(), committed.count.tolist(), strict=True)
        for place, (row, count) in enumerate(pairs, first):
            self._learn(place, row[:count])

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._rows = [self._rows[row] for row in rows.tolist()]
        self._merging.translator.keep(rows)

    def translate(self, teacher: Teacher, answers: Tensor) -> Teacher:
        """Translates the target's answers into the drafter's tokens: common tokens, and n-grams by their first."""
        lexicon = self._common
        if lexicon is None:
            lexicon = self._lexicon()
            lexicon.add(teacher.tokens.flatten().tolist())
        return self._merging.translator.translate(teacher, answers, lexicon.ngrams)

    def _learn(self, row: int, tokens: list[int]) -> None:
        if self.cache == "seen":
            self._rows[row].add(tokens)

    def _lexicon(self) -> NgramLexicon:
        return NgramLexicon(self._spellings, self._merging.reach)
