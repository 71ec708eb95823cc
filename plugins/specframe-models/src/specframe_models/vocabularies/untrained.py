"""Forms of these drafters for a target of a few tokens, as certificates need them."""

from __future__ import annotations

from specframe import CompositionError
from specframe.plugin import Drafter
from specframe_models.vocabularies.translator import Pair
from specframe_models.vocabularies.vocabulary import toys


def translated(drafter: Drafter, vocab: int) -> tuple[Drafter, Pair]:
    """Returns an untrained form of the drafter for a small vocabulary, and that with one of `vocab` tokens."""
    pair = toys(vocab)
    small = getattr(drafter, "untrained", None)
    if small is None:
        raise CompositionError(f"the drafter '{type(drafter).__name__}' has no untrained form")
    return small(len(pair[0].pieces)), pair
