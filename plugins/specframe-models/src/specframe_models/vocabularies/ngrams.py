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
    """Proposes the tokens that both vocabularies have, and n-grams of the drafter's that are one token of the target's.

    An n-gram has the product of its tokens' probabilities. A token that begins n-grams hands them their mass and keeps
    the rest. As published (`q'(t) = q(d)` for both) the mass would be counted twice, and the recorded law would not be
    that of the proposed tokens. Here it is, so every tree policy and every verifier stays lossless.

    N-grams are those of tokens that a row's text has held so far, prompt included, or those of all tokens. `shared` are
    those of all texts of a session, as a server has it from its start to its end: a draft then depends on other rows,
    all of it known before a token is drawn, so that distributions stay as they are.

    Below `online` the drafter learns from the target's answers (OmniDraft's hybrid distillation): the loss compares
    distributions over the drafter's tokens, in which an n-gram counts for the token that it begins with, and within
    n-grams that the target wrote, the token that follows is learnt.

    Source: OmniDraft (arXiv 2507.02659), its n-gram cache; the law is corrected.

    Options:
        drafter: a drafter that reads tokens alone, such as `model`
        cache: seen (n-grams that the row's text has held) or all (every token that the drafter can write)
        shared: whether n-grams that any row's text has held serve all rows, with `seen`
        width: how many beginnings of n-grams are followed, below each node and level
        reach: the most tokens of an n-gram
        least: the least probability of a beginning that is followed
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
        """This drafter around one whose vocabulary, and the target's, are given."""
        made = cls(drafter=drafter, cache=cache, shared=shared, width=width, reach=reach, least=least)
        made._merging.translator.given = pair
        return made

    def untrained(self, vocab: int) -> Ngrams:
        """A copy around an untrained drafter, over two small vocabularies."""
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
        """The one lexicon of all rows, if they share one."""
        if self.cache == "all":
            self._common = self._lexicon()
            self._common.add(range(target.vocab_size))

    def open(self, slots: int, room: int) -> None:
        """Forgets every row, and the n-grams they shared."""
        self._rows = []
        if self.shared:
            self._common = self._lexicon()
        self._merging.translator.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A draft below root [B], grown by the tree policy."""
        return self._merging.propose(root, tree, context, self._rows)

    def commit(self, committed: Committed) -> None:
        """Takes in the committed tokens and their n-grams."""
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
