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
    """Proposes tokens of the target by the probability of their strings under a drafter of another vocabulary (SLRS).

    The drafter's tokens are drawn until their text shows which token of the target it begins with; that token's
    probability is the sum over all ways to get there. The sum over everything is exponential in the length of a token.
    So only the likeliest `width` of the texts that may grow into longer tokens are followed, at most `reach` tokens
    far, and the others end as the longest token they hold. Tokens are drawn from this law, and it is recorded: every
    tree policy and every verifier stays lossless, for any width and reach.

    Source: Timor et al. 2025 (arXiv 2502.05202), algorithm 4; the cut by width and reach is ours.

    Options:
        drafter: a drafter that reads tokens alone, such as `model`
        width: how many texts are followed, below each node and level
        reach: the most tokens of the drafter for one of the target's
        least: the least probability of a text that is followed
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
        """This drafter around one whose vocabulary, and the target's, are given."""
        made = cls(drafter=drafter, width=width, reach=reach, least=least)
        made._merging.translator.given = pair
        return made

    def untrained(self, vocab: int) -> Strings:
        """A copy around an untrained drafter, over two small vocabularies."""
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
        """Forgets every row."""
        self._merging.translator.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A draft below root [B], grown by the tree policy."""
        return self._merging.propose(root, tree, context, [self._lexicon] * len(root))

    def commit(self, committed: Committed) -> None:
        """Takes in the committed tokens."""
        self._merging.translator.commit(committed)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._merging.translator.keep(rows)

    def translate(self, teacher: Teacher, answers: Tensor) -> Teacher:
        """Translates the target's answers into the drafter's tokens."""
        return self._merging.translator.translate(teacher, answers, self._spellings.several)
