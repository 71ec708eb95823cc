"""Common base of the drafters that sum the probabilities of several of the drafter's tokens."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specframe import InputError
from specframe.plugin import Context, Drafter, Expand, Target, TokenTree, TreePolicy, text_of
from specframe_models.vocabularies.law import Follow, MergedLaw
from specframe_models.vocabularies.lexicon import Lexicon, Spellings
from specframe_models.vocabularies.translator import Pair, Translator, require_tree


class Merging:
    """A translator, the choice of prefixes, and a lexicon for each row."""

    def __init__(
        self, name: str, drafter: Drafter, replace: dict[str, str] | None, width: int, least: float, reach: int
    ) -> None:
        if width < 1 or reach < 1 or not 0 <= least <= 1:
            raise InputError(
                f"{name} needs width and reach of at least 1 and least from 0 to 1, got {width}, {reach} and {least:g}"
            )
        self.name = name
        self.reach = reach
        self.follow = Follow(width, least)
        self.translator = Translator(drafter, replace, None)

    def bind(self, target: Target) -> tuple[Spellings, Pair]:
        """Binds the drafter; returns its spellings of the target's tokens, and both vocabularies."""
        pair = self.translator.bind(target)
        return Spellings(*pair, text_of(target).device), pair

    def propose(
        self, root: Tensor, tree: TreePolicy | None, context: Context, lexicons: Sequence[Lexicon]
    ) -> TokenTree:
        """Returns a draft below root [B], grown by the tree policy, each row by its own lexicon."""
        roots = self.translator.roots

        def translate(expand: Expand) -> Expand:
            return MergedLaw(lexicons, self.follow, expand, roots).expand

        return self.translator.propose(root, require_tree(tree, self.name), context, translate)
