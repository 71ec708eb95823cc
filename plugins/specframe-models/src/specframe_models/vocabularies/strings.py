"""String-level rejection sampling: the law of the target's next token, over every way to write it."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from specframe.plugin import Committed, Context, Drafter, Promise, Target, Teacher, TokenTree, TreePolicy
from specframe_models.vocabularies.lexicon import StringLexicon
from specframe_models.vocabularies.merging import Merging
from specframe_models.vocabularies.translator import Pair
from specframe_models.vocabularies.untrained import translated


class Strings:
    """Proposes target tokens by the probability of their strings under a drafter of another vocabulary (SLRS).

    The drafter's tokens are drawn until their text determines the target token with which it begins; that token's
    probability is the sum over all ways to get there. The complete sum is exponential in the length of a token.
    Therefore only the `width` most likely of the texts that may grow into longer tokens are followed, for at most
    `reach` tokens, and the others end as the longest token they contain. Tokens are drawn from this law, and it is
    recorded, so every tree policy and every verifier remains lossless, for any width and reach.

    Source: Timor et al. 2025 (arXiv 2502.05202), algorithm 4; the limits by width and reach are ours.

    Options:
        drafter: a drafter that reads tokens alone, such as `model`
        width: number of texts that are followed, below each node and level
        reach: maximum number of the drafter's tokens for one of the target's
        least: minimum probability of a text that is followed
        replace: replacements in the prompt's text for the drafter, such as the target's chat format
    """

    taps: frozenset[str] = frozenset()
    promise = Promise()

    def __init__(
        self,
        *,
        drafter: Drafter,
        width: int = 4,
        reach: int = 4,
        least: float = 0.01,
        replace: dict[str, str] | None = None,
    ) -> None:
        self._merging = Merging("slrs", drafter, replace, width, least, reach)

    @classmethod
    def given(cls, drafter: Drafter, pair: Pair, *, width: int = 4, reach: int = 4, least: float = 0.01) -> Strings:
        """Creates this drafter around one with given vocabularies of drafter and target."""
        made = cls(drafter=drafter, width=width, reach=reach, least=least)
        made._merging.translator.given = pair
        return made

    def untrained(self, vocab: int) -> Strings:
        """Returns a copy around an untrained drafter, over two small vocabularies."""
        own = self._merging
        small = translated(own.translator.drafter, vocab)
        return Strings.given(*small, width=own.follow.width, reach=own.reach, least=own.follow.least)

    @property
    def drafter(self) -> Any:
        """The drafter of another vocabulary."""
        return self._merging.translator.drafter

    def bind(self, target: Target) -> None:
        """Reads both vocabularies."""
        self._spellings, pair = self._merging.bind(target)
        self._lexicon = StringLexicon(self._spellings, *pair, self._merging.reach)

    def open(self, slots: int, room: int) -> None:
        """Starts a session without rows."""
        self._merging.translator.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns a draft below root [B], grown by the tree policy."""
        return self._merging.propose(root, tree, context, [self._lexicon] * len(root))

    def commit(self, committed: Committed) -> None:
        """Reads the committed tokens."""
        self._merging.translator.commit(committed)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._merging.translator.keep(rows)

    def translate(self, teacher: Teacher, answers: Tensor) -> Teacher:
        """Translates the target's answers into the drafter's tokens."""
        return self._merging.translator.translate(teacher, answers, self._spellings.several)
